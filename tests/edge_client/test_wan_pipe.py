"""One direction of an emulated connection: when bytes are due, in which order, and how many are held back."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from draftwire.edge_client.wan_alarm import Alarm
from draftwire.edge_client.wan_conditions import Conditions
from draftwire.edge_client.wan_pipe import BUFFER_BYTES, Line, Pipe
from hypothesis import given
from hypothesis import strategies as st

from ..grace import GRACE

# --- when a piece is due --------------------------------------------------------------------------------------------

SECONDS = st.floats(0, 0.5)
CONDITIONS = st.builds(
    Conditions,
    delay=SECONDS,
    jitter=st.tuples(SECONDS, SECONDS).map(lambda pair: (min(pair), max(pair))),
    bandwidth_up=st.none() | st.floats(1e3, 1e9),
)
PIECES = st.lists(st.tuples(SECONDS, st.integers(0, 70_000), CONDITIONS), min_size=1, max_size=30)


@given(pieces=PIECES, seed=st.text(max_size=3))
def test_pieces_arrive_in_order_and_never_early(pieces: list[tuple[float, int, Conditions]], seed: str) -> None:
    line, again = Line("up", seed=seed), Line("up", seed=seed)
    now, before = 100.0, 0.0
    for gap, size, conditions in pieces:
        now += gap
        low, high = conditions.jitter_range
        due = line.send(size, now, conditions)
        assert due >= before
        seconds = 8 * size / (conditions.bandwidth_up or math.inf)
        assert due >= now + seconds + conditions.delay + low - 1e-9
        assert due <= max(before, line.free_at + conditions.delay + high) + 1e-9
        assert again.send(size, now, conditions) == due  # the same seed draws the same
        before = due


@given(sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=30), bandwidth=st.floats(1e3, 1e9))
def test_a_busy_line_carries_exactly_its_bandwidth(sizes: list[int], bandwidth: float) -> None:
    line, conditions = Line("down", seed="0"), Conditions(bandwidth_down=bandwidth)
    due = [line.send(size, 10.0, conditions) for size in sizes][-1]
    assert due == pytest.approx(10.0 + 8 * sum(sizes) / bandwidth)


@pytest.mark.parametrize(("bandwidth", "size"), [(None, 65536), (1e5, 1460), (8e7, 10_000), (1e12, 65536)])
def test_pieces_are_a_millisecond_or_a_packet(bandwidth: float | None, size: int) -> None:
    assert Line("up", seed="0").piece_size(Conditions(bandwidth_up=bandwidth)) == size


def test_jitter_differs_between_pieces() -> None:
    conditions = Conditions(jitter=(0.1, 0.2))
    line = Line("up", seed="0")
    extra = [line.send(1, now, conditions) - now for now in range(1, 50)]
    assert len({round(seconds, 6) for seconds in extra}) > 40
    assert all(0.1 - 1e-9 <= seconds <= 0.2 + 1e-9 for seconds in extra)


# --- what is held back ----------------------------------------------------------------------------------------------


class HeldSink:
    """Takes nothing until let go."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.received = bytearray()
        self.ended = ""

    async def write(self, data: bytes) -> None:
        await self.free.wait()
        self.received += data

    def finish(self) -> None:
        self.ended = "finished"

    def abort(self) -> None:
        self.ended = "aborted"


@asynccontextmanager
async def pipe_to(
    sink: HeldSink, conditions: list[Conditions]
) -> AsyncIterator[tuple[asyncio.StreamReader, Pipe, asyncio.Task[None]]]:
    """A pipe that runs, under the last of ``conditions``."""
    reader, alarm = asyncio.StreamReader(), Alarm()
    pipe = Pipe(reader, sink, line=Line("up", seed="0"), conditions=lambda: conditions[-1], alarm=alarm)
    task = asyncio.create_task(pipe.run())
    yield reader, pipe, task
    async with asyncio.timeout(GRACE):
        await task
    alarm.stop()


async def holds(pipe: Pipe, size: int) -> None:
    """Wait until so many bytes are held back."""
    async with asyncio.timeout(GRACE):
        while pipe.held < size:
            await asyncio.sleep(0)


async def test_what_is_held_back_is_bounded() -> None:
    data = random.Random(2).randbytes(3 * BUFFER_BYTES + 5)
    sink = HeldSink()
    async with pipe_to(sink, [Conditions()]) as (reader, pipe, _):
        reader.feed_data(data)
        reader.feed_eof()
        await holds(pipe, BUFFER_BYTES)
        for _ in range(100):  # turns of the loop in which it could read on
            await asyncio.sleep(0)
        assert pipe.held == BUFFER_BYTES
        sink.free.set()
    assert sink.received == data
    assert sink.ended == "finished"
    assert pipe.held == 0


async def test_a_break_comes_after_what_was_sent_before() -> None:
    sink = HeldSink()
    sink.free.set()
    async with pipe_to(sink, [Conditions(delay=0.02)]) as (reader, pipe, _):
        reader.feed_data(b"last words")
        await holds(pipe, 10)
        reader.set_exception(ConnectionResetError())
    assert sink.received == b"last words"
    assert sink.ended == "aborted"


async def test_a_shorter_delay_lets_nothing_overtake() -> None:
    sink, conditions = HeldSink(), [Conditions(delay=0.05)]
    sink.free.set()
    async with pipe_to(sink, conditions) as (reader, pipe, _):
        started = time.monotonic()
        reader.feed_data(b"1")
        await holds(pipe, 1)
        conditions.append(Conditions())
        reader.feed_data(b"2")
        reader.feed_eof()
    assert sink.received == b"12"
    assert time.monotonic() - started >= 0.05


async def test_a_pipe_ends_when_its_far_end_is_gone() -> None:
    class GoneSink(HeldSink):
        async def write(self, data: bytes) -> None:
            raise BrokenPipeError(len(data))

    async with pipe_to(GoneSink(), [Conditions()]) as (reader, _, task):
        reader.feed_data(b"anyone?")  # and no end: nobody may wait for one
        async with asyncio.timeout(GRACE):
            await task
