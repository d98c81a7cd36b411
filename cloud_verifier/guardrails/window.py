"""Streams that have ended lately, and what can be said of them together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["Sample", "Window", "acceptance_of", "error_rate_of", "p95"]

_MOST = 1024
"""Streams a window remembers at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One stream that has ended.

    Attributes:
        at: when it ended (monotonic seconds).
        drafted, accepted: draft tokens that were verified, and those of them that passed.
        tpot: seconds per output token after the first commit; None where too few came, or waiting was asked for.
        failed: whether the verifier was at fault.
    """

    at: float
    drafted: int = 0
    accepted: int = 0
    tpot: float | None = None
    failed: bool = False


class Window:
    """The newest samples.

    Args:
        seconds: age up to which they count; None for any.
    """

    def __init__(self, *, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._samples: deque[Sample] = deque(maxlen=_MOST)

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples)

    def add(self, sample: Sample) -> None:
        """One more; those that are too old by then are forgotten."""
        self._samples.append(sample)
        self.forget_old(sample.at)

    def forget_old(self, now: float) -> None:
        """Forget what is too old."""
        while self.seconds is not None and self._samples and self._samples[0].at < now - self.seconds:
            self._samples.popleft()

    def clear(self) -> None:
        """Forget everything."""
        self._samples.clear()


def acceptance_of(samples: Iterable[Sample], *, at_least: int) -> float | None:
    """Accepted of all verified draft tokens; None where fewer than ``at_least`` streams had any."""
    drafting = [sample for sample in samples if sample.drafted]
    if len(drafting) < at_least:
        return None
    return sum(sample.accepted for sample in drafting) / sum(sample.drafted for sample in drafting)


def error_rate_of(samples: Iterable[Sample], *, at_least: int) -> float | None:
    """Share of streams that failed; None of fewer than ``at_least``."""
    failed = [sample.failed for sample in samples]
    return sum(failed) / len(failed) if len(failed) >= at_least else None


def p95(samples: Iterable[Sample], *, at_least: int) -> float | None:
    """95th percentile of seconds per token, by nearest rank; None of fewer than ``at_least`` streams."""
    tpots = sorted(sample.tpot for sample in samples if sample.tpot is not None)
    return tpots[math.ceil(0.95 * len(tpots)) - 1] if len(tpots) >= at_least else None
