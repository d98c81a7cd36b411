"""One socket from accept to close, over a transport that only remembers."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from draftwire.cloud_verifier.service.lobby import Lobby
from draftwire.cloud_verifier.service.visit import Visit

NET = 60.0


class FakeTransport(asyncio.Transport):
    def __init__(self, *, waiting: int = 0, encrypted: bool = False) -> None:
        super().__init__({"ssl_object": object() if encrypted else None})
        self.waiting = waiting
        self.most_waiting: int | None = None
        self.said: list[str] = []

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del low
        self.most_waiting = high

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def close(self) -> None:
        self.said.append("close")

    def abort(self) -> None:
        self.said.append("abort")


class FakeProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        del transport
        self.heard.append("made")

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return True

    def pause_writing(self) -> None:
        self.heard.append("pause")

    def resume_writing(self) -> None:
        self.heard.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(exc)


class Rig:
    def __init__(self, *, hello_seconds: float = NET, rest_seconds: float = NET, **transport: Any) -> None:
        self.inner = FakeProtocol()
        self.lobby = Lobby[Visit](spare=1, spare_of_group=1, rest=0.0, patience=0.0)
        self.transport = FakeTransport(**transport)
        self.ended = asyncio.Event()
        self.timed_out = 0
        self.visit = Visit(
            lambda: self.inner,
            self.lobby,
            hello_seconds=lambda: hello_seconds,
            timed_out=self._time_out,
            gone=self._leave,
            rest_seconds=rest_seconds,
        )
        self.lobby.enter(self.visit, "a", 0.0)

    def _time_out(self) -> None:
        self.timed_out += 1

    def _leave(self, visit: Visit) -> None:
        self.lobby.leave(visit)
        self.ended.set()

    def receive(self, data: bytes) -> None:
        while data:
            buffer = self.visit.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count], data = data[:count], data[count:]
            self.visit.buffer_updated(count)

    async def until_shown_out(self, *, timed_out: int = 1) -> None:
        async with asyncio.timeout(NET):
            await self.ended.wait()
        assert (self.transport.said, self.timed_out, len(self.lobby)) == (["abort"], timed_out, 0)


async def test_everything_is_passed_on_in_small_pieces() -> None:
    rig = Rig()
    rig.visit.connection_made(rig.transport)
    data = bytes(range(256)) * 40
    rig.receive(data)
    rig.visit.pause_writing()
    rig.visit.resume_writing()
    assert rig.visit.eof_received()
    rig.visit.connection_lost(None)
    assert rig.inner.heard[0] == "made"
    pieces = [piece for piece in rig.inner.heard if isinstance(piece, bytes)]
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= 4096
    assert rig.inner.heard[-4:] == ["pause", "resume", "eof", None]
    assert len(rig.lobby) == 0


async def test_a_socket_that_asks_for_nothing_is_let_go_of() -> None:
    rig = Rig(hello_seconds=0.01)
    rig.visit.connection_made(rig.transport)
    rig.receive(b"GET /")
    await rig.until_shown_out()


async def test_a_second_request_has_as_long_from_its_first_byte_on() -> None:
    rig = Rig(hello_seconds=0.01)
    rig.visit.connection_made(rig.transport)
    rig.visit.asked()
    await asyncio.sleep(0.05)  # a request may take its time
    rig.visit.answered()
    await asyncio.sleep(0.05)  # and what is between two requests as well
    assert rig.transport.said == []
    rig.receive(b"G")
    await rig.until_shown_out()


async def test_a_handshake_that_does_not_end_is_cancelled() -> None:
    rig = Rig(hello_seconds=0.01)
    rig.visit.arrival = asyncio.create_task(asyncio.sleep(NET))
    await asyncio.wait([rig.visit.arrival])
    assert rig.visit.arrival.cancelled()
    rig.visit.connection_made(rig.transport)  # it came after all
    assert rig.transport.said == ["abort"]
    assert rig.inner.heard == []


async def test_guests_are_the_lobbys_to_know() -> None:
    rig = Rig()
    rig.visit.connection_made(rig.transport)
    assert rig.lobby.next_to_go(1e9) is rig.visit
    with rig.visit.seated():
        assert rig.lobby.next_to_go(1e9) is None
    assert rig.lobby.next_to_go(1e9) is rig.visit
    rig.visit.abort()
    rig.visit.abort()
    assert len(rig.lobby) == 0


async def test_showing_out_takes_no_answer_back_and_waits_for_nobody() -> None:
    for options, said in (({}, "close"), ({"waiting": 1}, "abort"), ({"encrypted": True}, "abort")):
        rig = Rig(**options)
        rig.visit.connection_made(rig.transport)
        rig.visit.show_out()
        assert rig.transport.said == [said]
        assert len(rig.lobby) == 0


async def test_tls_that_has_been_closed_twice_is_let_go_of_all_the_same() -> None:
    """asyncio's TLS transport cannot be asked for anything then, nor aborted."""
    rig = Rig(encrypted=True)
    near, far = socket.socketpair()
    with near, far:
        rig.transport._extra["socket"] = near  # type: ignore[attr-defined]
        rig.visit.connection_made(rig.transport)
        rig.transport._extra = None  # type: ignore[attr-defined]
        rig.visit.show_out()
        assert len(rig.lobby) == 0
        far.settimeout(NET)
        assert far.recv(1) == b""


async def test_whoever_cannot_be_shown_out_is_gone_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    rig.visit.connection_made(rig.transport)
    monkeypatch.delattr(FakeTransport, "get_write_buffer_size")
    with pytest.raises(NotImplementedError):
        rig.visit.show_out()
    assert len(rig.lobby) == 0


async def test_what_waits_to_be_sent_is_bounded() -> None:
    rig = Rig(encrypted=True)
    rig.visit.connection_made(rig.transport)
    assert rig.transport.most_waiting == 64 * 1024


async def test_a_closed_socket_whose_answer_is_not_read_does_not_stay() -> None:
    rig = Rig(rest_seconds=0.01, waiting=1)
    rig.visit.connection_made(rig.transport)
    rig.visit.asked()
    rig.visit.answered()
    await rig.until_shown_out(timed_out=0)
    rig.visit.answered()  # it does not rest any more


@pytest.mark.parametrize("news", ["bytes", "asked", "left"])
async def test_a_socket_that_does_not_rest_is_left_alone(news: str) -> None:
    rig = Rig(rest_seconds=0.01)
    rig.visit.connection_made(rig.transport)
    rig.visit.asked()
    rig.visit.answered()
    {"bytes": lambda: rig.receive(b"G"), "asked": rig.visit.asked, "left": rig.visit.left}[news]()
    await asyncio.sleep(0.05)
    assert rig.transport.said == []


async def test_it_is_found_by_its_transport() -> None:
    rig = Rig()
    rig.transport.get_protocol = lambda: rig.visit  # type: ignore[method-assign]
    assert Visit.of(rig.transport) is rig.visit
    rig.transport.get_protocol = lambda: rig.inner  # type: ignore[method-assign]
    assert Visit.of(rig.transport) is None
    assert Visit.of(None) is None
