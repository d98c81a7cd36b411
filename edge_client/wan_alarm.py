"""Waking a coroutine in time, to a fraction of a millisecond.

An event loop on epoll rounds what it sleeps up to whole milliseconds. A thread that waits on a lock is woken in time,
costs nothing meanwhile, and can wake the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
import time

__all__ = ["Alarm"]


class Alarm:
    """Wakes coroutines of one event loop, never early. Times are of :func:`time.monotonic`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()  # so that sleepers of the same time are never compared themselves
        self._stopped = False
        self._thread: threading.Thread | None = None

    async def until(self, when: float) -> None:
        """Return at ``when``, or at once if that is over."""
        if when <= time.monotonic():
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="draftwire-alarm", daemon=True)
            self._thread.start()
        sleeper = asyncio.get_running_loop().create_future()
        with self._changed:
            heapq.heappush(self._sleepers, (when, next(self._numbers), sleeper))
            if self._sleepers[0][2] is sleeper:
                self._changed.notify()
        await sleeper

    def stop(self) -> None:
        """End the thread. Whoever still waits is not woken any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                if not self._sleepers:
                    self._changed.wait()
                elif (wait := self._sleepers[0][0] - time.monotonic()) > 0:
                    self._changed.wait(wait)
                else:
                    sleeper = heapq.heappop(self._sleepers)[2]
                    with contextlib.suppress(RuntimeError):  # the loop has been closed over its sleepers
                        sleeper.get_loop().call_soon_threadsafe(_wake, sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
