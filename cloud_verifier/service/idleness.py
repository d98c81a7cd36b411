"""How long a connection may be silent: first until HELLO, then without a stream."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Idleness"]

_LOOK_SECONDS = 15.0
"""At least so often is looked again, as the limits may be set anew meanwhile."""


class Idleness:
    """Watches one connection; told of everything that may end its idle time.

    Args:
        hello_seconds: time to greet.
        idle_seconds: time without a stream, as of now; 0 for ever.
    """

    def __init__(
        self,
        *,
        hello_seconds: float = 10.0,
        idle_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hello_seconds = hello_seconds
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._greeted = False
        self._since: float | None = clock()
        self.when_changed: Callable[[], None] = lambda: None
        """Called when what :attr:`remaining` said is no longer so."""

    def note(self, *, greeted: bool, streams: bool) -> None:
        """How the connection stands after a message: whether HELLO has come, and whether a stream is open."""
        if greeted is self._greeted and streams is (self._since is None):
            return
        self._greeted = greeted
        self._since = None if streams else self._clock()
        self.when_changed()

    @property
    def remaining(self) -> float:
        """Seconds until it is worth looking again; 0 or less when its time is up."""
        allowed = self._idle_seconds() if self._greeted else self._hello_seconds
        if self._since is None or not allowed:
            return _LOOK_SECONDS
        return min(_LOOK_SECONDS, self._since + allowed - self._clock())

    @property
    def reason(self) -> str:
        """What to tell it when its time is up."""
        if not self._greeted:
            return f"no HELLO within {self._hello_seconds:g} s; connect again and say it"
        return f"no stream for {self._idle_seconds():g} s; connect again when there is one"
