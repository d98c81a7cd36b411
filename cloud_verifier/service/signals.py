"""How a service ends: one signal ends it in order, two at once; and SIGHUP, which reads its settings again."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from typing import Protocol

__all__ = ["Drained", "caught_signal", "drain"]

logger = logging.getLogger(__name__)

_ENDING = (signal.SIGINT, signal.SIGTERM)
_LOOK = 0.05


class Drained(Protocol):
    """What is asked of the engine."""

    def drain(self) -> None:
        """Take no new streams."""

    @property
    def active_streams(self) -> int:
        """How many run or wait."""


async def drain(engine: Drained, seconds: float) -> None:
    """Take no new streams, and let those that run finish, within the time there is."""
    engine.drain()
    until = asyncio.get_running_loop().time() + seconds
    logger.info("draining: %d streams have %g s to finish", engine.active_streams, seconds)
    while engine.active_streams and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_LOOK)


def caught_signal(*, reload: Callable[[], None] | None = None) -> asyncio.Future[signal.Signals]:
    """The first signal to end that comes; a second one ends the process as if nobody had caught it.

    Args:
        reload: called for each SIGHUP; without it, SIGHUP does what it always does.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[signal.Signals] = loop.create_future()

    def caught(number: signal.Signals) -> None:
        for name in _ENDING:
            loop.remove_signal_handler(name)
            signal.signal(name, signal.SIG_DFL)
        stop.set_result(number)

    for name in _ENDING:
        loop.add_signal_handler(name, caught, name)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, reload)
    return stop
