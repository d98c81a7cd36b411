"""One direction of one connection over an emulated network: bytes go in at once, and come out when due, in order."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Protocol

from .wan_alarm import Alarm
from .wan_conditions import Conditions, Way

__all__ = ["BUFFER_BYTES", "Line", "Pipe", "Sink"]

BUFFER_BYTES = 1 << 20
"""Most bytes that a direction of a connection holds back, as a TCP window does: beyond them the sender waits.

So where nothing else limits the rate, it is this many bytes for each one-way delay.
"""

_LARGEST_PIECE = 64 * 1024
_PACKET = 1460
_PIECE_SECONDS = 0.001
"""With a bandwidth, pieces are this long on the line, or one packet, so that they come out as evenly as they should."""
_READ_AHEAD = 0.02
"""Seconds of line time that are read ahead of the line; more would keep the bandwidth of the time it was read."""


class Line:
    """When a piece comes out at the far end. No I/O, and no clock of its own."""

    def __init__(self, way: Way, *, seed: str) -> None:
        self._way = way
        self._random = random.Random(seed)
        self._last_due = 0.0
        self.free_at = 0.0
        """When the last bit of all that was sent is on the line."""

    def piece_size(self, conditions: Conditions) -> int:
        """Most bytes to send at once."""
        bandwidth = conditions.bandwidth(self._way)
        if bandwidth is None:
            return _LARGEST_PIECE
        return max(_PACKET, min(_LARGEST_PIECE, int(bandwidth / 8 * _PIECE_SECONDS)))

    def send(self, size: int, now: float, conditions: Conditions) -> float:
        """Put ``size`` bytes on the line at ``now`` or when it is free; returns when they arrive, never overtaking."""
        self.free_at = max(self.free_at, now)
        if (bandwidth := conditions.bandwidth(self._way)) is not None:
            self.free_at += 8 * size / bandwidth
        low, high = conditions.jitter_range
        jitter = self._random.uniform(low, high) if high else 0.0
        self._last_due = max(self._last_due, self.free_at + conditions.delay + jitter)
        return self._last_due


class Sink(Protocol):
    """Where a pipe ends. Each method may raise OSError, which ends the pipe."""

    async def write(self, data: bytes) -> None:
        """Take bytes, waiting until there is room for more."""

    def finish(self) -> None:
        """No more bytes will come."""

    def abort(self) -> None:
        """The sender has broken off."""


class Pipe:
    """Reads from a stream and writes to a sink, with a line between."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        sink: Sink,
        *,
        line: Line,
        conditions: Callable[[], Conditions],
        alarm: Alarm,
    ) -> None:
        self._reader = reader
        self._sink = sink
        self._line = line
        self._conditions = conditions
        self._alarm = alarm
        self._pieces: asyncio.Queue[tuple[float, bytes | None]] = asyncio.Queue()  # b"" ends it, None breaks it off
        self._drained = asyncio.Event()
        self.held = 0
        """Bytes that have been read and not yet passed on; at most :data:`BUFFER_BYTES`."""

    async def run(self) -> None:
        """Carry bytes until the end of the stream has been passed on, or the sink takes no more."""
        filling = asyncio.create_task(self._fill())
        try:
            await self._deliver()
        except OSError:
            pass  # the far end has gone; what it sent before goes its own way, and so does the news
        finally:
            filling.cancel()
            await asyncio.wait([filling])

    async def _fill(self) -> None:
        """Read whatever fits, and note when it is due: the delay does not limit the rate."""
        end: bytes | None = None
        try:
            while data := await self._reader.read(await self._room()):
                self.held += len(data)
                size = self._line.piece_size(self._conditions())  # it may have changed since
                for start in range(0, len(data), size):
                    self._put(data[start : start + size])
            end = b""
        except OSError:
            pass
        finally:
            self._put(end)

    async def _room(self) -> int:
        """How many bytes to read now; waits for at least one."""
        while self.held >= BUFFER_BYTES:
            self._drained.clear()
            await self._drained.wait()
        ahead = self._line.free_at - time.monotonic() - _READ_AHEAD
        if ahead > 0:
            await asyncio.sleep(ahead)
        return min(self._line.piece_size(self._conditions()), BUFFER_BYTES - self.held)

    def _put(self, data: bytes | None) -> None:
        due = self._line.send(len(data or b""), time.monotonic(), self._conditions())
        self._pieces.put_nowait((due, data))

    async def _deliver(self) -> None:
        while True:
            due, data = await self._pieces.get()
            await self._alarm.until(due)
            await self._sink.write(data or b"")  # an end, too, waits for what holds bytes up
            if data is None:
                return self._sink.abort()
            if not data:
                return self._sink.finish()
            self.held -= len(data)
            self._drained.set()
