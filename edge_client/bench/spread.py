"""A middle value and how far the values lie around it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Spread", "median_interval", "percentile"]


@dataclass(frozen=True, slots=True)
class Spread:
    """``count`` values: ``middle`` is their geometric mean, the others are order statistics."""

    count: int
    middle: float
    low_quartile: float
    high_quartile: float
    least: float
    most: float

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Spread:
        """Of ratios, all above 0, at least one."""
        return cls(
            count=len(ratios),
            middle=statistics.geometric_mean(ratios),
            low_quartile=percentile(ratios, 0.25),
            high_quartile=percentile(ratios, 0.75),
            least=min(ratios),
            most=max(ratios),
        )


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of ``values`` lie, between two of them by interpolation; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median_interval(values: Sequence[float], *, sure: float = 0.95) -> tuple[float, float]:
    """The true median lies between these two of ``values`` with probability ``sure``, however they are distributed.

    Fewer than six values cannot be as sure as 0.95; their least and most are returned. At least one is needed.
    """
    ordered, count = sorted(values), len(values)
    cut = 0  # values left out at each end; each falls below the true median as a coin falls on heads
    while 2 * sum(math.comb(count, heads) for heads in range(cut + 2)) / 2**count <= 1 - sure:
        cut += 1
    return ordered[cut], ordered[count - 1 - cut]
