"""The listening sockets: takes connections while there is room, makes room where there is none, and counts them all.

A connection that is not taken yet waits in the kernel's queue, where it costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket as sockets
import ssl
import sys
from collections.abc import Callable

from ...protocol.errors import VerifierError
from .config import DoorLimits
from .crowd import address_group
from .lobby import Lobby
from .sending import WRITE_SECONDS, limit_tls_buffers
from .visit import Visit

__all__ = ["Entrance"]

logger = logging.getLogger(__name__)

_SPARE = range(64, 1024 + 1)
"""Places that guests cannot take: as many as there are files for. They cost little, and bursts need them."""
_SPARE_OF_ADDRESS = 16
_REST = 0.05
_PATIENCE = 2.0
_BACKLOG = 1024
"""As many may wait in the kernel's queue, where the system allows it: bursts are larger than the usual 128."""
_OTHER_FILES = 128
"""Open files that are no connections."""
_LOOK = 0.02
"""How often somebody is looked for who may go."""
_PAUSE = 0.5
_SAY_SECONDS = 60.0
"""How often it is logged that connections wait: while they do, they come in one by one."""
_GOODBYE_SECONDS = WRITE_SECONDS
"""How long a TLS connection may take to end: what a slow reader has not read by then is lost."""
_FILES = (errno.EMFILE, errno.ENFILE)
_SHORTAGES = (*_FILES, errno.ENOBUFS, errno.ENOMEM)
"""Where one connection less is room for another."""
_ABSENT = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""Where a name has an address that this machine has not."""


class Entrance:
    """Where connections come in.

    Args:
        serve: makes the protocol that serves a connection.
        limits: as of now.
        refused: is told a short name of why, for each socket that is let go of unasked.
        tls: gives what a connection is to use that comes now; None for plain text.
    """

    def __init__(
        self,
        serve: Callable[[], asyncio.Protocol],
        limits: Callable[[], DoorLimits],
        *,
        refused: Callable[[str], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._serve = serve
        self._limits = limits
        self._refused = refused
        self._tls = tls
        spare = min(max(_open_files() - _OTHER_FILES - limits().max_connections, _SPARE[0]), _SPARE[-1])
        self._lobby: Lobby[Visit] = Lobby(spare=spare, spare_of_group=_SPARE_OF_ADDRESS, rest=_REST, patience=_PATIENCE)
        self._room = asyncio.Event()
        self._listeners: list[sockets.socket] = []
        self._takers: list[asyncio.Task[None]] = []
        self._arrivals: set[asyncio.Task[None]] = set()
        self._said_at = -_SAY_SECONDS
        """When it was logged last that connections wait."""

    def __len__(self) -> int:
        """Open connections."""
        return len(self._lobby)

    async def open(self, host: str, port: int) -> int:
        """Take connections from now on; returns the bound port. VerifierError where the address cannot be had."""
        if self._tls is not None:
            limit_tls_buffers()
        try:
            self._listeners = await _bind(host, port)
        except OSError as error:
            raise VerifierError(f"cannot listen on {host}:{port}: {_reason(error)}; choose another port") from None
        needed = self._limits().max_connections + _SPARE[0] + _OTHER_FILES
        if _open_files() < needed:
            logger.warning("%d open files are allowed, and %d may be needed; raise ulimit -n", _open_files(), needed)
        self._takers = [asyncio.create_task(self._take(listener)) for listener in self._listeners]
        return int(self._listeners[0].getsockname()[1])

    async def close(self) -> None:
        """Take no more; whoever is still on its way in is let go of."""
        for taker in self._takers:
            taker.cancel()
        await asyncio.sleep(0)  # each arrival has begun, so that its socket is somebody's to close
        tasks = [*self._takers, *self._arrivals]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    # --- taking them --------------------------------------------------------------------------------------------

    async def _take(self, listener: sockets.socket) -> None:
        while True:
            try:
                await self._take_one(listener)
            except Exception:  # of one visit, which must not keep everybody else out
                logger.exception("a connection was not taken")
                await asyncio.sleep(_PAUSE)

    async def _take_one(self, listener: sockets.socket) -> None:
        await self._make_room()
        try:
            socket, address = await asyncio.get_running_loop().sock_accept(listener)
        except ConnectionError:  # it left the queue
            return
        except OSError as error:
            await self._recover(error)
            return
        self._let_in(socket, address_group(str(address[0])))
        await asyncio.sleep(0)  # a burst must not keep the loop from those that are inside

    async def _make_room(self) -> None:
        """Until there is room for one more."""
        while self._lobby.is_full(self._limits().max_connections):
            if not self._show_out():
                self._room.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK):
                        await self._room.wait()

    def _show_out(self, group: str | None = None) -> bool:
        visit = self._lobby.next_to_go(asyncio.get_running_loop().time(), group=group)
        if visit is not None:
            self._refused("no_room")
            visit.show_out()
        return visit is not None

    async def _recover(self, error: OSError) -> None:
        """Where file descriptors or buffers have run out, or something else keeps connections from being taken."""
        now = asyncio.get_running_loop().time()
        if now >= self._said_at + _SAY_SECONDS:
            advice = "; raise the limit of open files (ulimit -n)" if error.errno in _FILES else ""
            logger.error("connections wait: %s%s", _reason(error), advice)
            self._said_at = now
        makes_room = error.errno in _SHORTAGES and self._show_out()
        await asyncio.sleep(_LOOK if makes_room else _PAUSE)  # the socket of whoever goes is closed in the next turn

    def _let_in(self, socket: sockets.socket, group: str) -> None:
        most = self._limits().max_connections_per_address
        if self._lobby.is_full_of(group, most) and not self._show_out(group):
            self._refused("no_room")
            socket.close()
            return
        visit = Visit(
            self._serve,
            self._lobby,
            hello_seconds=lambda: self._limits().hello_seconds,
            timed_out=lambda: self._refused("no_request"),
            gone=self._note_gone,
        )
        self._lobby.enter(visit, group, asyncio.get_running_loop().time())
        visit.arrival = asyncio.create_task(self._arrive(visit, socket))
        self._arrivals.add(visit.arrival)
        visit.arrival.add_done_callback(self._arrivals.discard)

    async def _arrive(self, visit: Visit, socket: sockets.socket) -> None:
        """Bring a socket up to where its protocol has it, through the TLS handshake if there is one."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: visit,
                socket,
                ssl=self._tls() if self._tls is not None else None,
                ssl_shutdown_timeout=_GOODBYE_SECONDS if self._tls is not None else None,
            )
        except OSError as error:  # no TLS that we speak, or it left
            logger.debug("a connection was not made: %s", type(error).__name__)
        finally:
            if visit.transport is None:
                visit.left()

    def _note_gone(self, visit: Visit) -> None:
        self._lobby.leave(visit)
        self._room.set()


def _open_files() -> int:
    """How many this process may have."""
    try:
        import resource
    except ImportError:  # Windows, where nobody counts
        return sys.maxsize
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return files if files != resource.RLIM_INFINITY else sys.maxsize


async def _bind(host: str, port: int) -> list[sockets.socket]:
    """A listening socket for each address that the host has, all with one port.

    Raises:
        OSError: this machine has none of the addresses, or the port of one cannot be had.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=sockets.SOCK_STREAM, flags=sockets.AI_PASSIVE
    )
    listeners: list[sockets.socket] = []
    absent: OSError | None = None
    try:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                listener = sockets.create_server((address[0], port, *address[2:]), family=family, backlog=_BACKLOG)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                absent = error
                continue
            listener.setblocking(False)
            listeners.append(listener)
            port = int(listener.getsockname()[1])
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    if absent is not None and not listeners:
        raise absent
    return listeners


def _reason(error: OSError) -> str:
    """What the system calls it, without what was tried."""
    if isinstance(error, sockets.gaierror) or error.errno is None:
        return str(error.strerror or error)
    return os.strerror(error.errno)
