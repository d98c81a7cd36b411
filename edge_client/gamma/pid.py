"""A PID controller that steers the share of draft tokens that are right to a set value."""

from __future__ import annotations

from .controller import Round
from .fixed import LookAheadController

__all__ = ["PidController"]


class PidController(LookAheadController):
    """More look-ahead while more tokens than ``target`` are right, less while fewer are.

    Args:
        most: upper bound of the look-ahead.
        target: the acceptance rate to hold.
        start: the first look-ahead, and where it is while the error is zero and always was.
    """

    _PROPORTIONAL = 8.0
    _INTEGRAL = 0.8
    _DERIVATIVE = 4.0
    _SMOOTHING = 0.9

    def __init__(self, most: int, *, target: float = 0.7, start: float = 4.0) -> None:
        super().__init__(min(start, most))
        self._most = most
        self._target = target
        self._start = start
        self._rate = target
        self._sum = 0.0
        self._error = 0.0

    def committed(self, round_: Round) -> None:
        """See :class:`Controller`."""
        for _, right in round_.tested:
            self._rate = self._SMOOTHING * self._rate + (1 - self._SMOOTHING) * right
        if not round_.tested:
            return
        error = self._rate - self._target
        wanted = (
            self._start
            + self._PROPORTIONAL * error
            + self._INTEGRAL * (self._sum + error)
            + self._DERIVATIVE * (error - self._error)
        )
        self._error = error
        self.look_ahead = min(max(wanted, 1.0), float(self._most))
        if wanted == self.look_ahead:  # the integral must not wind up while the look-ahead cannot follow it
            self._sum += error
