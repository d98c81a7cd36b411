"""Additive increase, multiplicative decrease: the look-ahead grows on acceptance and shrinks on rejection."""

from __future__ import annotations

from .controller import Round
from .fixed import LookAheadController

__all__ = ["AimdController"]


class AimdController(LookAheadController):
    """As TCP treats its window: one more where the path held, half where it broke.

    Args:
        most: upper bound of the look-ahead.
        start: the first one.
    """

    def __init__(self, most: int, *, start: float = 4.0) -> None:
        super().__init__(min(start, most))
        self._most = most

    def committed(self, round_: Round) -> None:
        """See :class:`Controller`."""
        if any(not right for _, right in round_.tested):
            self.look_ahead = max(1.0, self.look_ahead / 2)
        elif round_.tested:
            self.look_ahead = min(float(self._most), self.look_ahead + 1)
