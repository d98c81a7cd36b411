"""Estimates of times that jump: medians of a few latest values, so that a spike is forgotten, not averaged in."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable

__all__ = ["Recent", "StepTime"]


class Recent:
    """The latest values of one time in seconds.

    Args:
        size: how many count.
        values: known before.
    """

    def __init__(self, size: int = 9, values: Iterable[float] = ()) -> None:
        self._values = deque(values, maxlen=size)

    def add(self, value: float) -> None:
        """Take a measurement."""
        self._values.append(value)

    def dump(self) -> list[float]:
        """The values, oldest first."""
        return list(self._values)

    @property
    def known(self) -> bool:
        """Whether there is any."""
        return bool(self._values)

    @property
    def median(self) -> float:
        """The middle of them; 0 while unknown."""
        return statistics.median(self._values) if self._values else 0.0

    @property
    def spread(self) -> float:
        """How far above the median the latest values lie at most: what a deadline must allow for."""
        return max(self._values) - self.median if self._values else 0.0


class StepTime:
    """How long the target's step takes by the draft tokens in it: a line fitted to the latest steps.

    The line is fitted by least squares with forgetting, its slope held between 0 and a fifth of a one-token step, where
    measurements of blocks of few sizes would let it swing.
    """

    _MEMORY = 0.97
    _STEEPEST = 0.2

    def __init__(self) -> None:
        self._single = Recent(15)
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, block: int, seconds: float) -> None:
        """A step that verified ``block`` draft tokens took so long."""
        if block == 0:
            self._single.add(seconds)
        elif self._single.known and seconds > 4 * self._single.median * (1 + 0.1 * block):
            return  # something else kept the machine busy
        self._weight = self._MEMORY * self._weight + 1
        self._x = self._MEMORY * self._x + block
        self._y = self._MEMORY * self._y + seconds
        self._xx = self._MEMORY * self._xx + block * block
        self._xy = self._MEMORY * self._xy + block * seconds

    def dump(self) -> dict[str, list[float]]:
        """Everything, for :meth:`load`."""
        return {"single": self._single.dump(), "sums": [self._weight, self._x, self._y, self._xx, self._xy]}

    @classmethod
    def load(cls, single: Iterable[float], sums: Iterable[float]) -> StepTime:
        """What :meth:`dump` gave; ValueError when it is nothing of the kind."""
        step = cls()
        step._single = Recent(15, single)
        step._weight, step._x, step._y, step._xx, step._xy = values = [float(value) for value in sums]
        whole = all(math.isfinite(value) and value >= 0 for value in values)
        if not whole or 0 < step._weight < 1 or not math.isfinite(step.seconds(1)):  # a step weighs 1 at first
            raise ValueError("not the sums of a step time")
        return step

    @property
    def known(self) -> bool:
        """Whether a step was seen."""
        return self._weight > 0

    @property
    def slope(self) -> float:
        """Seconds that one more draft token in a step costs."""
        if not self.known:
            return 0.0
        spread = self._weight * self._xx - self._x * self._x
        raw = (self._weight * self._xy - self._x * self._y) / spread if spread > 1e-9 else 0.0
        return min(max(raw, 0.0), self._STEEPEST * self._y / self._weight)

    def seconds(self, block: int = 0) -> float:
        """Of a step that verifies ``block`` draft tokens; 0 while unknown."""
        if not self.known:
            return 0.0
        base = max((self._y - self.slope * self._x) / self._weight, 0.0)
        return base + self.slope * block
