"""The emulated network, over real sockets. Times are bounded from below only: what takes longer is the machine's."""

from __future__ import annotations

import asyncio
import errno
import logging
import random
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from draftwire.edge_client import wan_link
from draftwire.edge_client.wan_link import Network
from draftwire.edge_client.wan_pipe import BUFFER_BYTES
from draftwire.edge_client.wan_relay import Conditions, Cut, WanRelay
from draftwire.protocol.errors import DraftwireError, InvalidParameterError

from ..grace import wait_for

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

RESET = struct.pack("ii", 1, 0)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


@asynccontextmanager
async def server(serve: Serve = echo, *, port: int = 0) -> AsyncIterator[int]:
    """A server on a loopback port; yields the port."""
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", port)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        listening.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(list(tasks))


@asynccontextmanager
async def connection(relay: WanRelay) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
    try:
        yield reader, writer
    finally:
        writer.close()


@asynccontextmanager
async def relayed(
    serve: Serve = echo, **options: Any
) -> AsyncIterator[tuple[WanRelay, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A server, a relay before it, and a connection through both."""
    async with (
        server(serve) as port,
        WanRelay("127.0.0.1", port, **options) as relay,
        connection(relay) as (reader, writer),
    ):
        yield relay, reader, writer


async def round_trip(relay: WanRelay, data: bytes = b"ping") -> bytes:
    async with connection(relay) as (reader, writer):
        writer.write(data)
        return await wait_for(reader.readexactly(len(data)))


async def read_until_broken(reader: asyncio.StreamReader) -> bytes:
    """What comes until the connection is reset."""
    received = bytearray()
    with pytest.raises(ConnectionResetError):
        await wait_for(_collect(reader, received))
    return bytes(received)


async def _collect(reader: asyncio.StreamReader, received: bytearray) -> None:
    while data := await reader.read(1000):
        received += data


# --- delay ----------------------------------------------------------------------------------------------------------


async def test_the_delay_is_for_each_way() -> None:
    async with server() as port, WanRelay("127.0.0.1", port, delay=0.03) as relay:
        started = time.monotonic()
        assert await round_trip(relay) == b"ping"
        assert time.monotonic() - started >= 0.06
        assert relay.counters.bytes_up == relay.counters.bytes_down == 4
        assert relay.counters.connections == 1


async def test_jitter_keeps_the_order() -> None:
    conditions = Conditions(delay=0.001, jitter=(0.0, 0.01))
    data = random.Random(1).randbytes(4000)
    async with relayed(conditions=conditions) as (_relay, reader, writer):
        for start in range(0, len(data), 100):
            writer.write(data[start : start + 100])
            await asyncio.sleep(0)
        assert await wait_for(reader.readexactly(len(data))) == data


async def test_the_network_can_change_under_a_connection() -> None:
    async with relayed(delay=0.0) as (relay, reader, writer):
        writer.write(b"a")
        assert await wait_for(reader.readexactly(1)) == b"a"
        relay.change(Conditions(delay=0.05))
        assert relay.conditions.delay == 0.05
        started = time.monotonic()
        writer.write(b"b")
        assert await wait_for(reader.readexactly(1)) == b"b"
        assert time.monotonic() - started >= 0.1
        relay.change(Conditions(bandwidth_up=80_000))  # 10 bytes a millisecond
        started = time.monotonic()
        writer.write(bytes(1000))
        await wait_for(reader.readexactly(1000))
        assert time.monotonic() - started >= 0.1


# --- bandwidth ------------------------------------------------------------------------------------------------------


async def test_bandwidth_is_a_bound_for_each_way() -> None:
    conditions = Conditions(bandwidth_up=800_000, bandwidth_down=400_000)
    async with relayed(conditions=conditions) as (_relay, reader, writer):
        started = time.monotonic()
        writer.write(bytes(10_000))
        await wait_for(reader.readexactly(1))
        # Up, the first packet; down again, its first slice.
        assert time.monotonic() - started >= 8 * 1460 / 800_000
        await wait_for(reader.readexactly(9_999))
        assert time.monotonic() - started >= 8 * 10_000 / 400_000


async def test_a_slow_reader_gets_everything() -> None:
    data = random.Random(3).randbytes(6 * BUFFER_BYTES)

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    async with relayed(flood, delay=0.001) as (_relay, reader, _):
        received = bytearray()
        while piece := await wait_for(reader.read(50_000)):
            received += piece
        assert received == data


# --- stalls ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"still here", b""])
async def test_a_stall_holds_everything_and_loses_nothing(data: bytes) -> None:
    async with relayed(delay=0.0) as (relay, reader, writer):
        relay.stall()
        writer.write(data)
        writer.write_eof()
        resumed: list[float] = []

        def resume() -> None:
            resumed.append(time.monotonic())
            relay.resume()

        asyncio.get_running_loop().call_later(0.05, resume)
        assert await wait_for(reader.read()) == data
        assert resumed, "it came through the stall"


async def test_a_stalled_connection_can_be_cut() -> None:
    async with server() as port, WanRelay("127.0.0.1", port, delay=0.0) as relay:
        async with connection(relay) as (reader, writer):
            writer.write(b"a")
            assert await wait_for(reader.readexactly(1)) == b"a"
            relay.stall()
            writer.write(b"b")
            relay.cut()
            assert await read_until_broken(reader) == b""
        relay.resume()
        assert await round_trip(relay) == b"ping"


# --- ends and breaks ------------------------------------------------------------------------------------------------


async def test_a_half_closed_connection_is_answered() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.read()
        writer.write(question[::-1])
        await writer.drain()

    async with relayed(answer, delay=0.002) as (_relay, reader, writer):
        writer.write(b"abc")
        writer.write_eof()
        assert await wait_for(reader.read()) == b"cba"


async def test_a_reset_is_passed_on() -> None:
    async def slam(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()

    async with server(slam) as port, WanRelay("127.0.0.1", port, delay=0.002) as relay:
        async with connection(relay) as (reader, writer):
            writer.write(b"a")
            assert await read_until_broken(reader) == b""
        assert relay.counters.cuts == 0


async def test_cut_breaks_every_connection_at_both_ends() -> None:
    broken: asyncio.Queue[str] = asyncio.Queue()

    async def watch(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await echo(reader, writer)
        except ConnectionResetError:
            broken.put_nowait("reset")

    async with server(watch) as port, WanRelay("127.0.0.1", port, delay=0.0) as relay:
        async with connection(relay) as one, connection(relay) as two:
            for reader, writer in (one, two):
                writer.write(b"a")
                await wait_for(reader.readexactly(1))
            relay.cut()
            relay.cut()
            for reader, _ in (one, two):
                await read_until_broken(reader)
            assert [await wait_for(broken.get()) for _ in range(2)] == ["reset", "reset"]
        assert relay.counters.cuts == 2
        assert await round_trip(relay) == b"ping"
        assert relay.counters.connections == 3


async def test_a_cut_in_time_hits_one_connection_each() -> None:
    cuts = [Cut(after_seconds=0.06), Cut(after_seconds=0.03)]
    async with server() as port, WanRelay("127.0.0.1", port, cuts=cuts) as relay:
        for seconds in (0.03, 0.06):
            started = time.monotonic()
            async with connection(relay) as (reader, writer):
                writer.write(b"a")
                assert await read_until_broken(reader) == b"a"
            assert time.monotonic() - started >= seconds - 0.002  # the loop's clock may be a tick ahead
        assert await round_trip(relay) == b"ping"
        assert relay.counters.cuts == 2


async def test_the_same_time_twice_is_for_two_connections() -> None:
    cuts = [Cut(after_seconds=0.03), Cut(after_seconds=0.03)]
    async with server() as port, WanRelay("127.0.0.1", port, cuts=cuts) as relay:
        for number in (1, 2):
            async with connection(relay) as (reader, writer):
                writer.write(b"a")
                assert await read_until_broken(reader) == b"a"
            assert relay.counters.cuts == number
        assert await round_trip(relay) == b"ping"


@pytest.mark.parametrize("count", [1, 4999, 5000, 70_000])
async def test_a_cut_by_bytes_lets_so_many_through(count: int) -> None:
    data = random.Random(4).randbytes(100_000)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def take(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        taken = b""
        try:
            while piece := await reader.read(1000):
                taken += piece
        except ConnectionResetError:
            received.put_nowait(taken)

    async with server(take) as port, WanRelay("127.0.0.1", port, cuts=[Cut(after_bytes=count, way="up")]) as relay:
        async with connection(relay) as (_, writer):
            writer.write(data)
            taken = await wait_for(received.get())
            assert data.startswith(taken)
            assert len(taken) <= count  # a reset may overtake what the kernel still holds
        assert relay.counters.bytes_up == count
        assert relay.counters.cuts == 1


async def test_cuts_by_bytes_count_one_way() -> None:
    cuts = [Cut(after_bytes=3), Cut(after_bytes=6)]
    async with server() as port, WanRelay("127.0.0.1", port, cuts=cuts) as relay:
        for cut in cuts:
            before = relay.counters.bytes_down
            async with connection(relay) as (reader, writer):
                writer.write(bytes(10))
                await read_until_broken(reader)
            assert relay.counters.bytes_down - before == cut.after_bytes
        assert await round_trip(relay, bytes(100)) == bytes(100)


@pytest.mark.parametrize("stalled", [False, True])
async def test_closing_the_relay_breaks_what_is_open(stalled: bool) -> None:
    async with server() as port:
        async with WanRelay("127.0.0.1", port, delay=0.001) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"a")
            await wait_for(reader.readexactly(1))
            if stalled:
                relay.stall()
                writer.write(b"b")
        await read_until_broken(reader)
        writer.close()
        assert relay.counters.cuts == 0
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await asyncio.open_connection("127.0.0.1", relay.port)


# --- what can go wrong ----------------------------------------------------------------------------------------------


async def test_an_unreachable_target_closes_the_client_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    caplog.set_level(logging.WARNING, "draftwire")
    async with WanRelay("127.0.0.1", port, delay=0.0) as relay:
        for _ in range(3):
            async with connection(relay) as (reader, _):
                assert await wait_for(reader.read()) == b""
        (record,) = caplog.records
        assert record.getMessage() == f"127.0.0.1:{port} refused the connection; is anything listening there yet?"
        async with server(port=port):
            assert await round_trip(relay) == b"ping"


async def test_a_port_in_use_is_one_clear_line() -> None:
    async with server() as port:
        with pytest.raises(
            DraftwireError, match=f"^cannot listen on 127.0.0.1:{port}: Address already in use; "
        ) as told:
            async with WanRelay("127.0.0.1", port, listen_port=port):
                pass
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["a" * 70 + ".com", "ä..b", "\udcff"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"^host: "):
        WanRelay(name, 1)
    with pytest.raises(InvalidParameterError, match=r"^listen_host: "):
        WanRelay("bücher.example", 1, listen_host=name)


def test_a_lack_of_open_files_is_told_once_for_each_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = Network("127.0.0.1", 1, Conditions(), cuts=[], seed=0)
    told: list[int] = []
    for now in (0.0, 0.0, 1.0, 9.0, 18.0, 30.0, 31.0):  # over in between only once
        monkeypatch.setattr(wan_link, "time", SimpleNamespace(monotonic=lambda now=now: now))
        network.tell_shortage()
        told.append(len(caplog.records))
    assert told == [1, 1, 1, 1, 1, 2, 2]
    assert "ulimit -n" in caplog.text


async def test_other_problems_of_the_loop_are_not_kept_quiet(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.get_running_loop()
    relay = WanRelay("127.0.0.1", 1)
    for number in (errno.EMFILE, errno.ENFILE, errno.EPERM):
        relay.on_loop_error(loop, {"message": "it went wrong", "exception": OSError(number, "so")})
    shortage, other = (record.getMessage() for record in caplog.records)
    assert shortage.startswith("too many open files: ")
    assert other.startswith("it went wrong")


def test_the_delay_is_given_once() -> None:
    with pytest.raises(InvalidParameterError, match="delay"):
        WanRelay("127.0.0.1", 1, delay=0.1, conditions=Conditions(delay=0.1))
