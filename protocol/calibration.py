"""How often a draft token of a given confidence turns out right: learned from what was committed.

A draft is no judge of itself: a sure one may be wrong half the time, a doubtful one may be right. Whoever plans with
confidence bytes first asks what they have been worth so far: the device for how far to draft, the verifier for how
much of a draft to verify.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable

from .clock import confidence

__all__ = ["Calibration"]

_EDGES = (2, 5, 9, 15, 23, 33, 49)
"""First bytes of the bins after the first one: probabilities below 0.96, 0.84, 0.71, 0.55, 0.39, 0.25 and 0.12."""

_CENTRES = (0, 3, 7, 12, 19, 28, 41, 80)
_PRIOR_WEIGHT = 4.0
_MEMORY = 0.985
"""What is left of a bin's past at each token in it: about the last 70 count."""


class Calibration:
    """Confidence bytes in bins, each with how many tokens were tested and how many were right, lately.

    Starts from a guess: drafts of real text are right somewhat more often than they believe when they doubt, and
    somewhat less often when they are sure.
    """

    def __init__(self) -> None:
        self._right = [_PRIOR_WEIGHT * (0.25 + 0.72 * confidence(byte)) for byte in _CENTRES]
        self._tested = [_PRIOR_WEIGHT] * len(_CENTRES)

    def probability(self, byte: int) -> float:
        """The chance that a token of this confidence byte is right, given that all before it are."""
        index = bisect_right(_EDGES, byte)
        return self._right[index] / self._tested[index]

    def survival(self, confidences: Iterable[int]) -> list[float]:
        """For each token of a path, the chance that the path is right up to and including it."""
        chances: list[float] = []
        chance = 1.0
        for byte in confidences:
            chance *= self.probability(byte)
            chances.append(chance)
        return chances

    def record(self, byte: int, right: bool) -> None:
        """Learn from a token that was tested: committed as proposed, or the first of its path that was not."""
        index = bisect_right(_EDGES, byte)
        self._right[index] = self._right[index] * _MEMORY + right
        self._tested[index] = self._tested[index] * _MEMORY + 1.0

    def dump(self) -> list[list[float]]:
        """The bins, [right, tested] each, for :meth:`load`."""
        return [[right, tested] for right, tested in zip(self._right, self._tested, strict=True)]

    @classmethod
    def load(cls, bins: Iterable[Iterable[float]]) -> Calibration:
        """What :meth:`dump` gave.

        Raises:
            ValueError: it is nothing that :meth:`dump` gives.
        """
        try:
            pairs = [(float(right), float(tested)) for right, tested in bins]
        except (TypeError, ValueError):
            pairs = []
        if len(pairs) != len(_CENTRES) or not all(0.0 <= right <= tested < math.inf for right, tested in pairs):
            raise ValueError("not the bins of a calibration")
        calibration = cls()
        calibration._right = [right for right, _ in pairs]
        calibration._tested = [max(tested, 1e-3) for _, tested in pairs]
        return calibration
