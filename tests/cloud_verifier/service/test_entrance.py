"""The listening sockets, with a protocol behind them that answers nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from draftwire.cloud_verifier.service import entrance as module
from draftwire.cloud_verifier.service.config import DoorLimits
from draftwire.cloud_verifier.service.entrance import Entrance
from draftwire.protocol.errors import VerifierError

NET = 60.0


class Silent(asyncio.Protocol):
    """Serves nothing."""


@asynccontextmanager
async def opened(refused: list[str], **limits: Any) -> AsyncIterator[tuple[Entrance, int]]:
    config = DoorLimits(**limits)
    entrance = Entrance(Silent, lambda: config, refused=refused.append)
    try:
        yield entrance, await entrance.open("127.0.0.1", 0)
    finally:
        await entrance.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(NET):
        while not holds():
            await asyncio.sleep(0.005)


async def test_connections_are_counted_from_accept_on_and_until_they_close() -> None:
    refused: list[str] = []
    async with opened(refused) as (entrance, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(entrance) == 3)
        for _, writer in pairs:
            writer.close()
        await until(lambda: len(entrance) == 0)
    assert refused == []
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_that_cannot_be_had_is_said_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(VerifierError, match=f"^cannot listen on 127.0.0.1:{port}: Address already in use; choose"):
            await Entrance(Silent, DoorLimits, refused=lambda _: None).open("127.0.0.1", port)
    with pytest.raises(VerifierError, match=r"^cannot listen on no-such-host.invalid:0: .*; choose another port$"):
        await Entrance(Silent, DoorLimits, refused=lambda _: None).open("no-such-host.invalid", 0)


async def test_the_names_of_this_machine_are_listened_to() -> None:
    entrance = Entrance(Silent, DoorLimits, refused=lambda _: None)
    port = await entrance.open("localhost", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    await entrance.close()


async def test_connections_wait_while_there_are_no_files_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, 3

    async def short(listener: socket.socket) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", short)
    with caplog.at_level(logging.ERROR):
        async with opened([]) as (entrance, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await until(lambda: len(entrance) == 1)
            writer.close()
    assert [record.getMessage() for record in caplog.records] == [
        "connections wait: Too many open files; raise the limit of open files (ulimit -n)"
    ]


async def test_too_few_files_for_the_limit_are_said_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_open_files", lambda: 256)
    async with opened([], max_connections=100):
        assert caplog.text.count("256 open files are allowed, and 292 may be needed; raise ulimit -n") == 1
    caplog.clear()
    async with opened([], max_connections=64):
        assert caplog.text == ""
