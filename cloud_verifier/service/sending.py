"""Callers who may not read, or not speak: how long is waited for them, and how much is held for them."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import contextlib
import logging
import socket as sockets
from collections.abc import Awaitable

__all__ = ["WRITE_SECONDS", "limit_buffer", "limit_tls_buffers", "send_in_time"]

logger = logging.getLogger(__name__)

_SEND_BUFFER = 32 * 1024
"""Bytes of a socket's commits that the kernel may hold: thousands of them, where a step makes one of ten bytes."""
WRITE_SECONDS = 20.0
"""How long a caller may leave a piece of an answer unread."""
_TLS_BUFFER = 16 * 1024
"""The most that a record of TLS holds."""
_WRITE_BYTES = 64 * 1024.0
"""Of a large piece, what must be read in a second."""


async def send_in_time(sending: Awaitable[None], transport: asyncio.BaseTransport | None, *, size: int = 0) -> None:
    """Wait until ``size`` bytes are sent, and let go of a caller that does not read: then ConnectionResetError."""
    try:
        async with asyncio.timeout(WRITE_SECONDS + size / _WRITE_BYTES):
            await sending
    except TimeoutError:
        logger.info("a caller is cut off: it does not read")
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        raise ConnectionResetError("it does not read") from None


def limit_buffer(transport: asyncio.BaseTransport | None) -> None:
    """Keep the kernel from taking megabytes for a reader that has stalled: it is noticed the later for it."""
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)


def limit_tls_buffers() -> None:
    """Let a TLS connection cost no more than it needs: asyncio sets 256 KiB aside for each before it says anything."""
    asyncio.sslproto.SSLProtocol.max_size = _TLS_BUFFER
