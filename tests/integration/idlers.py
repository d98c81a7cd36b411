"""Sockets that take places and ask for nothing, and a door with few places for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from draftwire.cloud_verifier.service import entrance
from draftwire.edge_client import AsyncEdgeClient

from ..grace import wait_for
from .door_rig import GuardedVerifier
from .table_targets import reference_tokens

__all__ = ["Idler", "crowd", "few_places", "generates", "still_open"]


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four sockets beside those of guests, two of one address, and little patience with them."""
    monkeypatch.setattr(entrance, "_SPARE", range(4, 5))
    monkeypatch.setattr(entrance, "_SPARE_OF_ADDRESS", 2)
    monkeypatch.setattr(entrance, "_PATIENCE", 0.1)


class Idler:
    """A socket that sends so much and no more, and reads nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Idler:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    @classmethod
    async def connect(cls, verifier: GuardedVerifier, sent: bytes = b"", *, address: str = "127.0.0.1") -> Idler:
        """``address`` is its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port, local_addr=(address, 0))
        writer.write(sent)
        return cls(reader, writer)

    async def end(self) -> bytes:
        """What it was told by the time the other end has let go."""
        told = b""
        with contextlib.suppress(ConnectionError):
            while piece := await wait_for(self.reader.read(65536)):
                told += piece
        return told


@asynccontextmanager
async def crowd(
    verifier: GuardedVerifier, count: int, sent: bytes = b"", **options: str
) -> AsyncIterator[Sequence[Idler]]:
    """Idlers, for as long as the block lasts."""
    idlers = await asyncio.gather(*(Idler.connect(verifier, sent, **options) for _ in range(count)))
    try:
        yield idlers
    finally:
        for each in idlers:
            each.writer.close()


async def still_open(idlers: Sequence[Idler], most: int) -> None:
    """Wait until at most so many of them are."""
    ends = {asyncio.create_task(each.end()) for each in idlers}
    try:
        async with asyncio.timeout(60):
            while sum(not end.done() for end in ends) > most:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                ends = {end for end in ends if not end.done()}
    finally:
        for end in ends:
            end.cancel()


async def generates(verifier: GuardedVerifier) -> bool:
    """Whether an ordinary client gets the right answer."""
    async with AsyncEdgeClient(verifier.url) as client:
        result = await wait_for(client.generate([4, 2], max_tokens=5))
    return result.token_ids == reference_tokens(verifier.target, [4, 2], 5)
