"""One socket from accept to close, around whichever protocol serves it: how long it may take to ask for something."""

from __future__ import annotations

import asyncio
import contextlib
import socket as sockets
from asyncio.trsock import TransportSocket
from collections.abc import Callable, Iterator

from .lobby import Lobby

__all__ = ["KEEP_ALIVE_SECONDS", "Visit", "aborter"]

KEEP_ALIVE_SECONDS = 75.0
"""How long a plain HTTP connection may be without a request: longer than common proxies keep theirs."""
_REST_SECONDS = KEEP_ALIVE_SECONDS + 5.0
"""After which a socket is gone that rests: it has been closed by then, and its client has not read what was sent."""
_WRITE_BUFFER = 64 * 1024
"""Bytes that are held for a client until it reads, beside those of the kernel. With TLS asyncio would hold more than a
slow reader takes while a connection ends."""

_BUFFER = memoryview(bytearray(4096))
"""What is read of one socket in one turn of the event loop, so that one that sends without end does not hold up the
rest: of the smallest frames this is some milliseconds' work. Shared, as whatever is read is copied at once. A view,
because asyncio's TLS fills slices of it, and those of a bytearray are copies."""


class Visit(asyncio.BufferedProtocol):
    """Passes everything on to the protocol that serves the socket, and lets go of a socket that asks for nothing.

    From accept until a request's head is whole there is a time limit, a TLS handshake included; the same holds for a
    further request on the connection, from its first byte on, unless that came along with the request before.

    Args:
        serve: makes the protocol.
        lobby: that it is in.
        hello_seconds: the time limit as of now.
        timed_out: called when it has been let go of for that.
        gone: called once, when its place is free again.
        rest_seconds: after an answer, until a socket without a request is let go of.
    """

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        lobby: Lobby[Visit],
        *,
        hello_seconds: Callable[[], float],
        timed_out: Callable[[], None],
        gone: Callable[[Visit], None],
        rest_seconds: float = _REST_SECONDS,
    ) -> None:
        self.transport: asyncio.Transport | None = None
        """What the protocol writes to; None before, such as in a TLS handshake."""
        self.arrival: asyncio.Task[None] | None = None
        """Brings the socket up to where there is a transport."""
        self._serve = serve
        self._lobby = lobby
        self._hello_seconds = hello_seconds
        self._timed_out = timed_out
        self._gone = gone
        self._rest_seconds = rest_seconds
        self._encrypted = False
        self._abort: Callable[[], None] | None = None
        self._inner: asyncio.Protocol | None = None
        self._loop = asyncio.get_running_loop()
        self._resting = False
        self._left = False
        self._timer: asyncio.TimerHandle | None = None
        self._hurry()

    @classmethod
    def of(cls, transport: asyncio.BaseTransport | None) -> Visit | None:
        """The visit that a transport belongs to; None where it is gone, or nobody's."""
        protocol = transport.get_protocol() if transport is not None else None
        return protocol if isinstance(protocol, cls) else None

    # --- what is told of it -------------------------------------------------------------------------------------

    def asked(self) -> None:
        """The head of a request has come."""
        self._relax()
        self._resting = False
        self._lobby.ask(self, self._loop.time())

    def answered(self) -> None:
        """The request has its answer."""
        self._resting = True
        self._relax()
        if not self._left:
            self._timer = self._loop.call_later(self._rest_seconds, self.abort)
        self._lobby.rest(self, self._loop.time())

    @contextlib.contextmanager
    def seated(self) -> Iterator[None]:
        """While it is a guest's."""
        self._lobby.seat(self)
        try:
            yield
        finally:
            self._lobby.ask(self, self._loop.time())

    def abort(self) -> None:
        """Let go of it at once, wherever it is; may be said again."""
        if self._abort is not None:
            self._abort()
        elif self.arrival is not None:
            self.arrival.cancel()
        self.left()

    def show_out(self) -> None:
        """Let go of it, without taking back an answer that it has been sent."""
        transport = self.transport
        try:
            if transport is not None and not self._encrypted and not transport.get_write_buffer_size():
                transport.close()  # at once, as nothing waits to be sent
            else:
                self.abort()
        finally:  # whatever fails, it is not asked again
            self.left()

    def left(self) -> None:
        """It is gone, or as good as gone."""
        self._relax()
        if not self._left:
            self._left = True
            self._gone(self)

    def _hurry(self) -> None:
        self._timer = self._loop.call_later(self._hello_seconds(), self._too_slow)

    def _relax(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timed_out()
        self.abort()

    # --- asyncio's protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        # Asked now, as a TLS transport that has been closed twice cannot be asked for anything.
        self._encrypted = transport.get_extra_info("ssl_object") is not None
        self._abort = aborter(transport)
        if self._left:  # shown out meanwhile
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._inner = self._serve()
        self._inner.connection_made(transport)

    def get_buffer(self, size_hint: int) -> memoryview:
        """See :class:`asyncio.BufferedProtocol`."""
        del size_hint
        return _BUFFER

    def buffer_updated(self, count: int) -> None:
        """See :class:`asyncio.BufferedProtocol`."""
        if self._resting:
            self._resting = False
            self._relax()
            if not self._left:
                self._hurry()
        if self._inner is not None:
            self._inner.data_received(bytes(_BUFFER[:count]))

    def eof_received(self) -> bool | None:
        """See :class:`asyncio.BufferedProtocol`."""
        return self._inner.eof_received() if self._inner is not None else None

    def pause_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self.left()
        if self._inner is not None:
            self._inner.connection_lost(error)


def aborter(transport: asyncio.WriteTransport) -> Callable[[], None]:
    """Lets go of a connection at once when called, also a second time; holds nothing of it but transport and socket.

    Asked for while it is open: asyncio's TLS transport knows nothing any more once it has been closed twice, not even
    how to abort.
    """
    encrypted = transport.get_extra_info("ssl_object") is not None
    socket: TransportSocket | None = transport.get_extra_info("socket")

    def abort() -> None:
        transport.abort()
        if encrypted and socket is not None:
            with contextlib.suppress(OSError):
                socket.shutdown(sockets.SHUT_RDWR)

    return abort
