"""Signals to a service: once to end it in order, twice to end it at once, SIGHUP to read its settings again."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

__all__ = ["caught_signal"]

_ENDING = (signal.SIGINT, signal.SIGTERM)


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
