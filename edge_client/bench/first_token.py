"""Time to the first token with a draft beside the same without."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from .measure import Answer
from .modes import CLOUD_ONLY
from .spread import median_interval, percentile

__all__ = ["FirstToken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """Milliseconds, medians over the pairs of answers to one prompt, one right after the other.

    Attributes:
        pairs: how many.
        cloud_only_ms, draftwire_ms: to the first token.
        ratio: with the draft over without, pair by pair.
        low_quartile, high_quartile: of the pairs' ratios.
        low, high: where the ratio's true median lies, with a probability of 0.95.
    """

    pairs: int
    cloud_only_ms: float
    draftwire_ms: float
    ratio: float
    low_quartile: float
    high_quartile: float
    low: float
    high: float

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> FirstToken:
        """Of pairs of answers, in either order within a pair; at least one pair."""
        pairs = [_pair(first, second) for first, second in zip(answers[::2], answers[1::2], strict=True)]
        ratios = [drafted / alone for alone, drafted in pairs]
        low, high = median_interval(ratios)
        return cls(
            pairs=len(pairs),
            cloud_only_ms=1000 * statistics.median(alone for alone, _ in pairs),
            draftwire_ms=1000 * statistics.median(drafted for _, drafted in pairs),
            ratio=statistics.median(ratios),
            low_quartile=percentile(ratios, 0.25),
            high_quartile=percentile(ratios, 0.75),
            low=low,
            high=high,
        )


def _pair(first: Answer, second: Answer) -> tuple[float, float]:
    alone, drafted = (first, second) if first.mode == CLOUD_ONLY else (second, first)
    return alone.stats.ttft_seconds or 0.0, drafted.stats.ttft_seconds or 0.0
