"""The connection that a client's streams share, and the search for another one when it is lost.

    a usable connection -> everybody gets it
    none                -> one search, whoever asks meanwhile joins it: every address in turn, wait, again

However many streams lost the connection, the verifiers see one client come back, and at a jittered moment.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence

from ..protocol.errors import (
    AuthenticationError,
    ConnectionLostError,
    DraftwireError,
    InvalidParameterError,
    VerifierRefusedError,
    VerifierUnreachableError,
)
from .addresses import Addresses
from .backoff import Backoff
from .connection import VerifierConnection

__all__ = ["RECONNECT_SECONDS", "Lifeline", "Tell"]

RECONNECT_SECONDS = 30.0
"""How long a lost verifier is searched for, unless said otherwise."""

Tell = Callable[[DraftwireError], None]
"""Is told each time a search finds nobody and goes on."""


class Lifeline:
    """Keeps a client connected to one of several verifiers.

    Args:
        urls: of verifiers with the same target, in order of preference.
        connect: connects to one of them.
        reconnect_seconds: how long each search goes on; an attempt that is under way then is let finish. None is
            :data:`RECONNECT_SECONDS` once there has been a connection, and one look at every address before: who has
            mistyped the address wants to know at once.
        backoff: spaces the looks.
        clock, sleep: monotonic seconds, and what waits for some.
    """

    def __init__(
        self,
        urls: Sequence[str],
        connect: Callable[[str], Awaitable[VerifierConnection]],
        *,
        reconnect_seconds: float | None,
        backoff: Backoff | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._addresses = Addresses(urls)
        self._connect = connect
        self._reconnect_seconds = reconnect_seconds
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._sleep = sleep
        self._current: VerifierConnection | None = None
        self._given_up: VerifierConnection | None = None  # the last that was found to be lost
        self._connected_at = 0.0
        self._old: list[VerifierConnection] = []  # some still have streams
        self._search: asyncio.Task[VerifierConnection] | None = None
        self._searches: set[asyncio.Task[VerifierConnection]] = set()
        self._faults: dict[str, DraftwireError] = {}  # of the search that goes on, the last of each address
        self._waiting: list[Tell] = []
        self._closed = False

    @property
    def last(self) -> VerifierConnection | None:
        """The connection there is, or was."""
        return self._current

    async def connection(self, tell: Tell = lambda _: None) -> VerifierConnection:
        """A usable connection: the one there is, or whatever a search finds.

        Args:
            tell: see :data:`Tell`.

        Raises:
            DraftwireError: what the last look found. An API key that is not accepted ends a search at once, and so
                does a look at which every address refused for good.
        """
        if self._closed:
            raise InvalidParameterError("client", "is closed; make a new one")
        if self._current is not None and self._current.usable:
            return self._current
        if self._search is None or self._search.done():
            self._search = asyncio.create_task(self._find())
            self._searches.add(self._search)
            self._search.add_done_callback(self._forget)
        return await self._join(self._search, tell)

    async def _join(self, search: asyncio.Task[VerifierConnection], tell: Tell) -> VerifierConnection:
        self._waiting.append(tell)
        try:
            return await asyncio.shield(search)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._closed and (me is None or not me.cancelling()):  # it was not we who were cancelled
                raise ConnectionLostError("the client was closed") from None
            raise
        finally:
            self._waiting.remove(tell)
            if not self._waiting and not search.done():  # nobody wants it any more
                search.cancel()
                self._search = None

    def _forget(self, search: asyncio.Task[VerifierConnection]) -> None:
        self._searches.discard(search)
        if not search.cancelled():
            search.exception()  # who still waits is told; where nobody does, it is no unhandled error

    async def close(self) -> None:
        """End a search, and close every connection; streams still open end with ConnectionLostError."""
        self._closed = True
        for search in self._searches:
            search.cancel()
        if self._searches:
            await asyncio.wait(self._searches)
        for connection in [*self._old, *([self._current] if self._current is not None else [])]:
            await connection.close()

    # --- the search ---------------------------------------------------------------------------------------------

    async def _find(self) -> VerifierConnection:
        self._addresses.wake()
        self._faults.clear()
        if self._current is None or self._current is self._given_up:  # an earlier search found nobody
            self._backoff.reset()
            self._backoff.begin(self._clock(), self._budget())
        else:
            await self._give_up(self._current)
        while True:
            try:
                connection = await self._look()
            except DraftwireError as error:
                now = self._clock()
                wait = self._backoff.next_wait(now, at_least=self._addresses.wait(now)) if error.retryable else None
                if wait is None:
                    raise
                for tell in list(self._waiting):
                    tell(error)
                await self._sleep(wait)
            else:  # nothing awaits between finding it and keeping it, so that no cancelled search leaves one open
                self._current, self._connected_at = connection, self._clock()
                return connection

    def _budget(self) -> float:
        if self._reconnect_seconds is not None:
            return self._reconnect_seconds
        return 0.0 if self._current is None else RECONNECT_SECONDS

    async def _give_up(self, lost: VerifierConnection) -> None:
        """Turn to the next address, after a moment: all clients of a verifier that dies lose it at once."""
        self._given_up = lost
        self._addresses.lost(lost.url)
        self._old = [connection for connection in [*self._old, lost] if not connection.ended]
        now = self._clock()
        if lost.served or now - self._connected_at > self._backoff.cap:
            self._backoff.reset()  # otherwise it was a connection in name only, and the waits grow on
        self._backoff.begin(now, self._budget())
        await self._sleep(self._backoff.next_wait(now) or 0.0)

    async def _look(self) -> VerifierConnection:
        """Try every address that is due, in turn.

        What is wrong with the others still counts: one that asked for patience may well serve later, whatever those say
        that refuse for good. Those are not tried again in this search.
        """
        for url in self._addresses.due(self._clock()):
            try:
                connection = await self._connect(url)
            except (AuthenticationError, InvalidParameterError):
                raise  # the same everywhere
            except DraftwireError as error:
                self._faults[url] = error
                if not error.retryable:
                    self._addresses.rest(url, math.inf)
                elif error.retry_after:
                    self._addresses.rest(url, self._clock() + error.retry_after)
            else:
                self._addresses.good(url)
                return connection
        raise _joined(list(self._faults.values()))


def _joined(faults: list[DraftwireError]) -> DraftwireError:
    """One error for all; there is a point in trying again if there is one for any of them."""
    if len(faults) == 1:
        return faults[0]
    said = ", and ".join(dict.fromkeys(fault.headline for fault in faults))
    text = f"none of the {len(faults)} verifiers can be used: {said}; check their addresses, and that one is running"
    if any(fault.retryable for fault in faults):
        return VerifierUnreachableError(text)
    return VerifierRefusedError(text)
