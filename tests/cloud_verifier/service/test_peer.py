"""The sending half of a socket whose far end reads, does not read, or is not there."""

from __future__ import annotations

import asyncio

import pytest
from draftwire.cloud_verifier.service import peer as module
from draftwire.cloud_verifier.service.peer import Peer

NET = 60.0
"""Seconds that nothing here takes unless it hangs."""


class FakeSocket:
    """Remembers what was asked of it; while ``stalled``, nothing that waits for the far end returns."""

    def __init__(self) -> None:
        self.stalled = False
        self.gone = False
        self.done: list[object] = []
        self.busy, self.aborted = asyncio.Event(), asyncio.Event()
        self.pings = 0
        self.peer: Peer | None = None

    async def send(self, frame: bytes) -> None:
        await self._wait()
        self.done.append(frame)

    async def ping(self) -> None:
        await self._wait()
        self.pings += 1
        if self.peer is not None:
            self.peer.pong()
        if self.pings == 5:
            self.busy.set()

    async def close(self, code: int, reason: bytes) -> None:
        await self._wait()
        self.done.append((code, reason))

    def abort(self) -> None:
        self.aborted.set()

    async def _wait(self) -> None:
        if self.gone:
            raise ConnectionResetError("it has left")
        if self.stalled:
            self.busy.set()
            await asyncio.Event().wait()


class Rig:
    def __init__(self, *, ping_interval: float = NET) -> None:
        self.socket, self.lost = FakeSocket(), 0
        self.peer = Peer(self.socket, lost=self._lose, ping_interval=ping_interval)

    def _lose(self) -> None:
        self.lost += 1

    async def is_cut_off(self) -> bool:
        async with asyncio.timeout(NET):
            await self.socket.aborted.wait()
        return self.lost == 1


async def test_frames_leave_in_order_before_a_polite_end() -> None:
    rig = Rig()
    frames = [bytes([number]) for number in range(50)]
    for frame in frames:
        rig.peer.enqueue(frame)
    await rig.peer.finish(1001, b"later")
    assert rig.socket.done == [*frames, (1001, b"later")]
    assert rig.lost == 0
    assert not rig.socket.aborted.is_set()


async def test_a_reader_that_is_too_far_behind_is_let_go_of_at_once() -> None:
    rig = Rig()
    rig.socket.stalled = True
    rig.peer.enqueue(b"x")
    await rig.socket.busy.wait()
    while not rig.lost:
        rig.peer.enqueue(bytes(10_000))
    assert rig.socket.aborted.is_set()
    rig.peer.enqueue(bytes(1_000_000))  # nothing more piles up
    assert rig.peer._frames.empty()
    async with asyncio.timeout(NET):
        await rig.peer.finish(1000, b"")
    assert (rig.lost, rig.socket.done) == (1, [])


async def test_a_frame_that_nobody_takes_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SEND_SECONDS", 0.01)
    rig = Rig()
    rig.socket.stalled = True
    rig.peer.enqueue(b"x")
    assert await rig.is_cut_off()


@pytest.mark.parametrize("frames", [0, 1], ids=["nothing waits", "a frame waits"])
async def test_an_end_does_not_wait_for_ever(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.01)
    rig = Rig()
    rig.socket.stalled = True
    for _ in range(frames):
        rig.peer.enqueue(b"x")
    async with asyncio.timeout(NET):
        await rig.peer.finish(1000, b"")
    assert rig.socket.aborted.is_set()


async def test_what_is_left_after_a_polite_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.01)
    rig = Rig()
    await rig.peer.finish(1000, b"")
    async with asyncio.timeout(NET):
        await rig.socket.aborted.wait()
    assert rig.lost == 0


async def test_pings_that_stay_unanswered_end_it() -> None:
    rig = Rig(ping_interval=0.001)
    assert await rig.is_cut_off()
    assert rig.socket.pings == 1


async def test_a_ping_that_cannot_be_sent_ends_it() -> None:
    rig = Rig(ping_interval=0.001)
    rig.socket.stalled = True
    assert await rig.is_cut_off()


async def test_pings_that_are_answered_go_on() -> None:
    rig = Rig(ping_interval=0.001)
    rig.socket.peer = rig.peer
    async with asyncio.timeout(NET):
        await rig.socket.busy.wait()
    await rig.peer.finish(1000, b"")
    assert rig.lost == 0


async def test_no_pong_is_missed_while_frames_are_not_read() -> None:
    rig = Rig(ping_interval=0.0)
    with rig.peer.holding():
        for _ in range(20):  # turns of the event loop, of which a ping and its absent answer take two
            await asyncio.sleep(0)
        assert rig.socket.pings == 0
        assert rig.lost == 0
    assert await rig.is_cut_off()


async def test_a_far_end_that_left_is_no_fault() -> None:
    rig = Rig()
    rig.socket.gone = True
    rig.peer.enqueue(b"x")
    async with asyncio.timeout(NET):
        await rig.peer.finish(1000, b"")
    assert rig.socket.done == []


async def test_pings_without_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PINGS_PER_MINUTE", 10.0)
    rig = Rig()
    assert all(rig.peer.pinged() for _ in range(10))
    assert not rig.socket.aborted.is_set()
    assert not rig.peer.pinged()
    assert rig.socket.aborted.is_set()
    assert rig.lost == 1
    await rig.peer.finish(1000, b"")
