"""When to try again: exponential backoff with full jitter, capped, within a budget of time. It has no clock."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff"]

_MOST_DOUBLINGS = 30


class Backoff:
    """Says how long to wait before each next attempt.

    The n-th wait is drawn evenly from 0 to ``min(cap, base * 2**n)``: whoever lost the same verifier at the same moment
    does not come back at the same moment.

    Args:
        base: seconds of the longest first wait.
        cap: seconds of the longest wait.
        draw: a random number from 0 to 1.
    """

    def __init__(self, *, base: float = 0.1, cap: float = 5.0, draw: Callable[[], float] = random.random) -> None:
        self.cap = cap
        self._base = base
        self._draw = draw
        self._waits = 0
        self._deadline: float | None = None

    def begin(self, now: float, budget: float) -> None:
        """From ``now`` on there are ``budget`` seconds. The spacing stays what it was: see :meth:`reset`."""
        self._deadline = now + budget

    @property
    def begun(self) -> bool:
        """Whether a budget is running."""
        return self._deadline is not None

    def reset(self) -> None:
        """All is well: the next failure is a first one."""
        self._waits = 0
        self._deadline = None

    def next_wait(self, now: float, *, at_least: float = 0.0) -> float | None:
        """Seconds to wait before the next attempt; None when the budget is spent, or would be by then.

        Args:
            now: on the clock of :meth:`begin`.
            at_least: what the other end asked for; the jitter comes on top.
        """
        left = 0.0 if self._deadline is None else self._deadline - now
        if left <= 0.0 or at_least >= left:
            return None
        spread = min(self.cap, self._base * 2.0 ** min(self._waits, _MOST_DOUBLINGS))
        self._waits += 1
        return min(at_least + self._draw() * spread, left)
