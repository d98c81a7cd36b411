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
    accept, calls = loop.sock_accept, 0

    async def short(listener: socket.socket) -> Any:
        nonlocal calls
        calls += 1
        if calls % 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", short)
    with caplog.at_level(logging.ERROR):
        async with opened([]) as (entrance, port):
            pairs = []
            for count in (1, 2, 3):  # one comes in now and then, which is no end of the shortage
                pairs.append(await asyncio.open_connection("127.0.0.1", port))
                await until(lambda count=count: len(entrance) == count)  # type: ignore[misc]
            for _, writer in pairs:
                writer.close()
    assert calls > 3
    assert [record.getMessage() for record in caplog.records] == [
        "connections wait: Too many open files; raise the limit of open files (ulimit -n)"
    ]


@pytest.mark.parametrize(("number", "gone"), [(errno.EMFILE, 1), (errno.ENOBUFS, 1), (errno.EPERM, 0)])
async def test_one_goes_at_a_time_where_it_makes_room(
    number: int, gone: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next is shown out once the socket of the first had time to be closed."""
    for name in ("_PAUSE", "_LOOK"):
        monkeypatch.setattr(module, name, NET)
    loop, refused = asyncio.get_running_loop(), list[str]()
    async with opened(refused) as (entrance, port):
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        await until(lambda: len(entrance) == 3)
        entrance._lobby._patience = 0.0

        async def short(_: socket.socket) -> Any:
            raise OSError(number, "short")

        monkeypatch.setattr(loop, "sock_accept", short)
        pairs.append(await asyncio.open_connection("127.0.0.1", port))  # taken, and nobody after it
        await until(lambda: caplog.records)
        await asyncio.sleep(0.02)
        assert (len(entrance), refused) == (4 - gone, ["no_room"] * gone)
        for _, writer in pairs:
            writer.close()


async def test_a_fault_of_one_visit_keeps_nobody_else_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.01)
    make_room, faults = Entrance._make_room, [AttributeError("one"), RuntimeError("two")]

    async def faulty(self: Entrance) -> None:
        if faults:
            raise faults.pop()
        await make_room(self)

    monkeypatch.setattr(Entrance, "_make_room", faulty)
    async with opened([]) as (entrance, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: len(entrance) == 1)
        writer.close()
    assert [record.getMessage() for record in caplog.records] == ["a connection was not taken"] * 2


async def test_an_address_that_this_machine_has_not_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))
    here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", 0)) for last in (1, 2)]
    found = [absent, *here]

    loop, look_up = asyncio.get_running_loop(), asyncio.get_running_loop().getaddrinfo

    async def names(host: str, *more: Any, **options: Any) -> Any:
        return found if host == "here" else await look_up(host, *more, **options)

    monkeypatch.setattr(loop, "getaddrinfo", names)
    entrance = Entrance(Silent, DoorLimits, refused=lambda _: None)
    port = await entrance.open("here", 0)
    for address in ("127.0.0.1", "127.0.0.2"):  # both have the port that was told
        _, writer = await asyncio.open_connection(address, port, family=socket.AF_INET)
        await until(lambda: len(entrance) == 1)
        writer.close()
        await until(lambda: len(entrance) == 0)
    await entrance.close()
    found[:] = [absent]
    with pytest.raises(VerifierError, match=r"^cannot listen on here:0: .*; choose another port$"):
        await Entrance(Silent, DoorLimits, refused=lambda _: None).open("here", 0)


async def test_too_few_files_for_the_limit_are_said_at_the_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_open_files", lambda: 256)
    async with opened([], max_connections=100):
        assert caplog.text.count("256 open files are allowed, and 292 may be needed; raise ulimit -n") == 1
    caplog.clear()
    async with opened([], max_connections=64):
        assert caplog.text == ""
