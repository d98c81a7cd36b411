"""One connection through an emulated network: two pipes, and what can break them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass

from .wan_alarm import Alarm
from .wan_conditions import Conditions, Cut, Way
from .wan_pipe import Line, Pipe

__all__ = ["Counters", "Link", "Network", "is_shortage", "reason"]

_log = logging.getLogger(__name__)

_STREAM_LIMIT = 64 * 1024
_SHORTAGE_SECONDS = 10.0
"""A shortage that was not felt for so long was over; asyncio tries again every second."""
_LINGER = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)  # on, for no time: closing sends a reset


@dataclass(slots=True)
class Counters:
    """What has gone through so far. Bytes count when they are passed on."""

    connections: int = 0
    cuts: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def add(self, way: Way, size: int) -> None:
        """Count bytes in one direction."""
        if way == "up":
            self.bytes_up += size
        else:
            self.bytes_down += size


class Network:
    """What the connections of a relay share."""

    def __init__(self, host: str, port: int, conditions: Conditions, *, cuts: Iterable[Cut], seed: int) -> None:
        self.host = host
        self.port = port
        self.conditions = conditions
        self.seed = seed
        self.counters = Counters()
        self.alarm = Alarm()
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.cuts = list(cuts)
        """Those still to happen: each hits the first connection that comes so far."""
        self._reachable = True
        self._short_since: float | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to the target; None, with a warning the first time in a row, where that fails."""
        try:
            ends = await asyncio.open_connection(self.host, self.port, limit=_STREAM_LIMIT)
        except OSError as error:
            if is_shortage(error):
                self.tell_shortage()
                return None
            if self._reachable:
                _log.warning("%s", _unreachable(f"{self.host}:{self.port}", error))
            self._reachable = False
            return None
        self._reachable = True
        return ends

    def tell_shortage(self) -> None:
        """Warn that no more files can be opened: once, and again only where it was over in between."""
        now = time.monotonic()
        if self._short_since is None or now - self._short_since > _SHORTAGE_SECONDS:
            _log.warning("too many open files: connections wait or are closed; raise the limit with ulimit -n")
        self._short_since = now

    def cut_within(self, way: Way, carried: int, size: int) -> Cut | None:
        """The first cut that falls within the next ``size`` bytes after ``carried``; it is taken off the list."""
        due = [cut for cut in self.cuts if cut.way == way and carried < (cut.after_bytes or 0) <= carried + size]
        if not due:
            return None
        first = min(due, key=lambda cut: cut.after_bytes or 0)
        self.cuts.remove(first)
        return first


class Link:
    """One client's connection, and ours to the target."""

    def __init__(self, network: Network, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        network.counters.connections += 1
        self._network = network
        self._number = network.counters.connections
        self._reader = reader
        self._writers = [writer]
        self._task: asyncio.Task[None] | None = None
        self._over = False

    async def run(self) -> None:
        """Relay until both directions have ended, or the connection is cut."""
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        timed = [cut for cut in self._network.cuts if cut.after_seconds is not None]
        timers = [loop.call_later(cut.after_seconds or 0.0, self._cut_in_time, cut) for cut in timed]
        try:
            await self._relay()
        except asyncio.CancelledError:
            self._over = True
            for writer in self._writers:
                _abort(writer)  # where it was not abort() that cancelled
        finally:
            self._over = True
            for timer in timers:
                timer.cancel()
            for writer in self._writers:
                writer.close()

    async def _relay(self) -> None:
        _prepare(self._writers[0])
        ends = await self._network.connect()
        if ends is None:
            return
        reader, writer = ends
        self._writers.append(writer)
        _prepare(writer)
        pipes = [
            asyncio.create_task(self._pipe("up", self._reader, writer).run()),
            asyncio.create_task(self._pipe("down", reader, self._writers[0]).run()),
        ]
        try:
            await asyncio.wait(pipes)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.wait(pipes)

    def _pipe(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Pipe:
        network = self._network
        # A generator for each direction: what one draws does not depend on when the others do.
        line = Line(way, seed=f"{network.seed} {self._number} {way}")
        outlet = _Outlet(self, network, way, writer)
        return Pipe(reader, outlet, line=line, conditions=lambda: network.conditions, alarm=network.alarm)

    def cut(self) -> None:
        """Break the connection at both ends, and count that."""
        if not self._over:
            self._network.counters.cuts += 1
            self.abort()

    def abort(self) -> None:
        """Break the connection at both ends: each gets a reset."""
        if not self._over:
            self._over = True
            for writer in self._writers:
                _abort(writer)
            if self._task is not None:
                self._task.cancel()

    def _cut_in_time(self, cut: Cut) -> None:
        if not self._over and cut in self._network.cuts:  # of two at one time, one is for another connection
            self._network.cuts.remove(cut)
            self.cut()


class _Outlet:
    """Where a pipe meets a socket again; see :class:`~.wan_pipe.Sink`. Scripted cuts hit here, and a stall holds."""

    def __init__(self, link: Link, network: Network, way: Way, writer: asyncio.StreamWriter) -> None:
        self._link = link
        self._network = network
        self._way: Way = way
        self._writer = writer
        self._carried = 0

    async def write(self, data: bytes) -> None:
        await self._network.flowing.wait()
        if self._writer.is_closing():
            raise ConnectionAbortedError
        cut = self._network.cut_within(self._way, self._carried, len(data))
        if cut is not None:
            data = data[: (cut.after_bytes or 0) - self._carried]
        self._writer.write(data)
        await self._writer.drain()
        self._carried += len(data)
        self._network.counters.add(self._way, len(data))
        if cut is not None:
            self._link.cut()
            raise ConnectionAbortedError

    def finish(self) -> None:
        if self._writer.can_write_eof():
            self._writer.write_eof()

    def abort(self) -> None:
        _abort(self._writer)


def is_shortage(error: BaseException | None) -> bool:
    """Whether what the system lacks is open files: of this process, or of the whole machine."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def reason(error: OSError) -> str:
    """What went wrong, without the address that asyncio repeats."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _unreachable(target: str, error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return f"{target} refused the connection; is anything listening there yet?"
    return f"the relay cannot reach {target}: {reason(error)}"


def _prepare(writer: asyncio.StreamWriter) -> None:
    """Send small pieces at once, and let draining mean that the kernel has them all: a cut comes after them."""
    writer.transport.set_write_buffer_limits(high=0)
    with contextlib.suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _abort(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    writer.transport.abort()
