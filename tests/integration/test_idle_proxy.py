"""Connections on which nothing is said, behind a proxy that drops those: pings keep them, in scaled time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import pytest
from draftwire.cloud_verifier.service.peer import PING_INTERVAL, Peer
from draftwire.edge_client import transport
from draftwire.protocol.errors import ConnectionLostError

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import endless_table, reference_tokens

PROMPT = [1, 7, 3]
IDLE = 1.8
"""The proxy's time-out, in place of a minute."""
PINGS = IDLE / 3
"""In place of 20 s."""
NEVER = 1000.0


class IdleProxy:
    """Forwards to a port, and drops a connection when nothing has come for :data:`IDLE` s in *one* of its directions.

    So a ping must be answered as well. An async context manager.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self.dropped = 0
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        ways = [
            asyncio.create_task(self._pass_on(reader, far_writer)),
            asyncio.create_task(self._pass_on(far_reader, writer)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (writer, far_writer):
            end.transport.abort()
        await asyncio.wait(ways)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            try:
                while True:
                    async with asyncio.timeout(IDLE):
                        piece = await reader.read(65536)
                    if not piece:
                        return
                    writer.write(piece)
            except TimeoutError:
                self.dropped += 1


def test_both_ends_ping_at_least_three_times_a_minute() -> None:
    """Proxies drop what is silent for a minute, and one ping may come late."""
    assert 0 < transport._PING_INTERVAL <= 20
    assert 0 < PING_INTERVAL <= 20
    assert Peer.__init__.__kwdefaults__ == {"ping_interval": PING_INTERVAL}


async def test_pings_of_either_end_alone_keep_a_silent_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three time-outs long; and without any pings it is dropped."""
    async with running_verifier(endless_table()) as verifier, IdleProxy(verifier.port) as proxy:
        proxied = replace(verifier, url=f"ws://127.0.0.1:{proxy.port}")

        async def connect(*, client: float, server: float) -> RawClient:
            monkeypatch.setattr(transport, "_PING_INTERVAL", client)
            monkeypatch.setitem(Peer.__init__.__kwdefaults__, "ping_interval", server)
            return await RawClient.connect(proxied)

        kept = [await connect(client=PINGS, server=NEVER), await connect(client=NEVER, server=PINGS)]
        lost = await connect(client=NEVER, server=NEVER)
        silence = [asyncio.create_task(client.transport.receive()) for client in (*kept, lost)]
        done, pending = await asyncio.wait(silence, timeout=3 * IDLE)  # being silent for so long is the test
        assert done == {silence[2]}
        with pytest.raises(ConnectionLostError):
            silence[2].result()
        assert proxy.dropped >= 1
        for task in pending:
            task.cancel()
        await asyncio.wait(pending)
        for client in kept:
            await still_serves(client, verifier)
        for client in (*kept, lost):
            await client.transport.close()


async def still_serves(client: RawClient, verifier: RunningVerifier) -> None:
    """The connection that was silent is as good as new."""
    stream = await client.open(PROMPT, max_tokens=10)
    tokens, _ = await wait_for(client.follow(stream))
    assert tuple(tokens) == reference_tokens(verifier.target, PROMPT, 10)
