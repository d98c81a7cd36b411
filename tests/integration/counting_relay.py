"""A relay that counts every byte that passes, WebSocket headers included."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Self

__all__ = ["CountingRelay"]


class CountingRelay:
    """Listens on a loopback port and forwards; ``up`` and ``down`` count bytes. An async context manager."""

    def __init__(self, port: int) -> None:
        self._far = port
        self._server: asyncio.Server | None = None
        self.port = 0
        self.up = 0
        self.down = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._far)
        await asyncio.gather(self._carry(reader, far_writer, "up"), self._carry(far_reader, writer, "down"))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
        writer.close()
