"""A userspace TCP relay that makes loopback feel like a wide-area network: it delays each byte, and keeps the order.

The kernel's own emulation needs privileges and modules that laptops and CI lack; this needs neither.
"""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from ..protocol.errors import InvalidParameterError

__all__ = ["WanRelay"]

_PIECE = 64 * 1024


class WanRelay:
    """Listens on a loopback port and forwards to ``host:port``, holding every piece back by ``delay`` seconds one way.

    An async context manager; :attr:`port` is where clients connect. The emulated round trip is twice the delay.
    """

    def __init__(self, host: str, port: int, *, delay: float) -> None:
        if not 0 <= delay < 60:
            raise InvalidParameterError("delay", f"must be from 0 to 60 seconds, not {delay:g}")
        self._host = host
        self._port = port
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        if self._links:
            await asyncio.wait(self._links)

    def cut(self) -> None:
        """Break every connection that goes through the relay."""
        for link in self._links:
            link.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        task.add_done_callback(self._links.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.close()
            return
        ways = [
            asyncio.create_task(self._carry(reader, far_writer)),
            asyncio.create_task(self._carry(far_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.ALL_COMPLETED)
        except asyncio.CancelledError:  # the relay cuts the link, or closes
            for end in (writer, far_writer):
                end.transport.abort()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            for end in (writer, far_writer):
                end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one way. Pieces are read at once and written when due, so the delay does not limit the rate."""
        loop = asyncio.get_running_loop()
        due: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=1024)
        deliverer = asyncio.create_task(_deliver(due, writer))
        try:
            while data := await reader.read(_PIECE):
                await due.put((loop.time() + self._delay, data))
            await due.put((loop.time() + self._delay, b""))
            await deliverer
        except OSError:
            writer.close()
        finally:
            deliverer.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await deliverer


async def _deliver(due: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while True:
        at, data = await due.get()
        if (wait := at - loop.time()) > 0:
            await asyncio.sleep(wait)
        if not data:
            if writer.can_write_eof():
                writer.write_eof()
            return
        writer.write(data)
        await writer.drain()
