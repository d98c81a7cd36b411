"""The sending half of one socket: what waits to be sent, whether anybody reads it, and how the socket ends.

A socket whose far end does not read cannot be closed politely: whatever is sent to say so waits behind the rest. So
everything here that waits for the far end has a deadline, and past it the transport is aborted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from .quota import TokenBucket

__all__ = ["PING_INTERVAL", "Peer", "Socket"]

logger = logging.getLogger(__name__)

PING_INTERVAL = 20.0
"""Seconds between pings, short enough for proxies that drop connections idle for a minute."""

_OUTGOING_BYTES = 256 * 1024
"""Far above what a fast target commits while the event loop is busy elsewhere."""

_PINGS_PER_MINUTE = 300.0
"""Clients ping every few seconds, and a few dozen times when they measure the way."""

_SEND_SECONDS = 20.0
_CLOSE_SECONDS = 5.0


class Socket(Protocol):
    """What a peer needs of a WebSocket. The coroutines raise ConnectionError or RuntimeError where it is gone."""

    async def send(self, frame: bytes) -> None:
        """Send one binary message; waits while the far end is behind."""

    async def ping(self) -> None:
        """Send a ping; the reading side tells of the pong."""

    async def close(self, code: int, reason: bytes) -> None:
        """Shake hands on the end."""

    def abort(self) -> None:
        """Let go of the connection and of all that waits to be sent; never waits, and may be called again."""


class Peer:
    """Sends frames to one client, and lets go of a client that does not read.

    Args:
        socket: the client's.
        lost: called once, when the client is let go of; its streams end there and then.
        ping_interval: seconds between pings, and for each to be answered.
    """

    def __init__(self, socket: Socket, *, lost: Callable[[], None], ping_interval: float = PING_INTERVAL) -> None:
        self._socket = socket
        self._lost = lost
        self._ping_interval = ping_interval
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._cut = False
        self._held = False
        self._unanswered = False
        self._pings = TokenBucket.full(_PINGS_PER_MINUTE, now=asyncio.get_running_loop().time())
        self._writer = asyncio.create_task(self._write())
        self._pinger = asyncio.create_task(self._keep_alive())

    def enqueue(self, frame: bytes) -> None:
        """Queue a frame; a reader too slow for the queue's bound is cut off rather than buffered for."""
        if self._cut:
            return
        self._frames.put_nowait(frame)
        self._waiting += len(frame)
        if self._waiting > _OUTGOING_BYTES:
            self.cut_off("reads too slowly")

    def pinged(self) -> bool:
        """The far end has sent a ping. False where it sends too many, and has been let go of for it."""
        if self._pings.take(asyncio.get_running_loop().time()):
            self.cut_off("sends too many pings")
        return not self._cut

    def pong(self) -> None:
        """The far end has answered a ping."""
        self._unanswered = False

    @contextmanager
    def holding(self) -> Iterator[None]:
        """While its frames are not read, which is no fault of the far end's, no pong is missed."""
        self._held = True
        try:
            yield
        finally:
            self._held = self._unanswered = False

    def cut_off(self, why: str) -> None:
        """End it at once, without a word."""
        if self._cut:
            return
        self._cut = True
        logger.info("a client is cut off: it %s", why)
        self._frames = asyncio.Queue()
        self._writer.cancel()
        self._pinger.cancel()
        self._lost()
        self._socket.abort()

    async def finish(self, code: int, reason: bytes) -> None:
        """Let queued frames, a last ERROR among them, leave before the socket closes; not for ever."""
        self._pinger.cancel()
        self._frames.put_nowait(None)
        ended = False
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await asyncio.wait([self._writer])
                if not self._cut:
                    await self._socket.close(code, reason)
            ended = True
        except (TimeoutError, ConnectionError, RuntimeError):
            pass
        finally:
            if not ended:
                self.cut_off("did not let itself be closed")
        # What is left in the transport after a polite end must not keep it for ever either.
        asyncio.get_running_loop().call_later(_CLOSE_SECONDS, self._socket.abort)

    async def _write(self) -> None:
        try:
            while (frame := await self._frames.get()) is not None:
                async with asyncio.timeout(_SEND_SECONDS):
                    await self._socket.send(frame)
                self._waiting -= len(frame)
        except TimeoutError:
            self.cut_off("does not read")
        except (ConnectionError, RuntimeError):  # it left; the reading side notices as well
            return

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._ping_interval)
            if self._held:
                continue
            if self._unanswered:
                break
            self._unanswered = True
            try:
                async with asyncio.timeout(self._ping_interval):
                    await self._socket.ping()
            except TimeoutError:
                break
            except (ConnectionError, RuntimeError):
                return
        self.cut_off("does not answer pings")
