"""How long paths live: the chance that a path is still right at its k-th token.

Real text is not geometric: a path that has held for a while is in a sure stretch and goes on holding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

__all__ = ["DEPTHS", "Survival"]

DEPTHS = 32
"""Depths told apart."""

_MEMORY = 0.96
_PRIOR_WEIGHT = 4.0
_PRIOR_FIRST, _PRIOR_LATER = 0.6, 0.78


class Survival:
    """For each depth, how many tokens were tested and how many were right, lately; deeper ones count as the last."""

    def __init__(self) -> None:
        self._tested = [_PRIOR_WEIGHT] * DEPTHS
        self._right = [_PRIOR_WEIGHT * (_PRIOR_FIRST if depth == 0 else _PRIOR_LATER) for depth in range(DEPTHS)]

    def record(self, depth: int, right: bool) -> None:
        """A token at ``depth`` of its path (0 is the first), with all before it right, was tested."""
        depth = min(depth, DEPTHS - 1)
        self._tested[depth] = _MEMORY * self._tested[depth] + 1
        self._right[depth] = _MEMORY * self._right[depth] + right

    def dump(self) -> list[list[float]]:
        """For each depth [right, tested], for :meth:`load`."""
        return [[right, tested] for right, tested in zip(self._right, self._tested, strict=True)]

    @classmethod
    def load(cls, depths: Iterable[Iterable[float]]) -> Survival:
        """What :meth:`dump` gave; ValueError when it is nothing of the kind."""
        pairs = [(float(right), float(tested)) for right, tested in depths]
        if len(pairs) != DEPTHS or not all(0.0 <= right <= tested < math.inf and tested > 0 for right, tested in pairs):
            raise ValueError("not the depths of a survival curve")
        survival = cls()
        survival._right, survival._tested = [right for right, _ in pairs], [tested for _, tested in pairs]
        return survival

    def hit(self, depth: int) -> float:
        """The chance that the token at ``depth`` is right, given that all before it are.

        Few paths get deep, so each depth leans on its neighbours.
        """
        depth = min(depth, DEPTHS - 1)
        low, high = (depth, depth + 1) if depth == 0 else (max(1, depth - 2), min(DEPTHS, depth + 3))
        return sum(self._right[low:high]) / sum(self._tested[low:high])
