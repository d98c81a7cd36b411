"""Plain numbers that are counted in one thread and read in another; they know no metrics library.

Counting must cost next to nothing, as it happens in the engine's thread. So an instrument is a dictionary of numbers,
and whatever else a metric needs is made when somebody asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

__all__ = ["Counts", "Distribution", "Family", "Kind", "Labels", "Lengths", "Spread"]

Labels: TypeAlias = tuple[str, ...]
"""Values of a family's labels, in its order."""


class Kind(Enum):
    """What a family's numbers mean: a total, a value of now, or how values are distributed."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A metric as it is told: ``name`` without prefix, and for counters without ``_total``.

    ``bounds`` are a histogram's upper bounds, ascending, without infinity.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


class Counts:
    """Totals of a family, by its labels. Those in ``known`` are there from the start, as zero."""

    def __init__(self, family: Family, known: Iterable[Labels] = ((),)) -> None:
        self.family = family
        self._values: dict[Labels, float] = dict.fromkeys(known, 0)

    def add(self, amount: float, *labels: str) -> None:
        """Count."""
        self._values[labels] = self._values.get(labels, 0) + amount

    def values(self) -> Mapping[Labels, float]:
        """What has been counted."""
        return dict(self._values)


class Lengths:
    """How long runs were, by one label; told as how many of them reached each position, from 0."""

    def __init__(self, family: Family, known: Iterable[str]) -> None:
        self.family = family
        self._runs: dict[str, list[int]] = {label: [0, 0] for label in known}

    def add(self, length: int, label: str) -> None:
        """Count a run."""
        runs = self._runs[label]
        while len(runs) <= length:
            runs.append(0)
        runs[length] += 1

    def values(self) -> Mapping[Labels, float]:
        """By label and position."""
        values: dict[Labels, float] = {}
        for label, runs in self._runs.items():
            reached = 0
            for position in range(len(runs) - 2, -1, -1):
                reached += runs[position + 1]
                values[label, str(position)] = reached
        return values


@dataclass(slots=True)
class Spread:
    """Values with the same labels: how many are in each bucket, the last of which has no bound, and their sum."""

    buckets: list[int]
    total: float = 0.0


@dataclass(slots=True)
class Distribution:
    """How the values of a family are distributed, by its labels. Those in ``known`` are there from the start."""

    family: Family
    known: Iterable[Labels] = ((),)
    _spreads: dict[Labels, Spread] = field(init=False)

    def __post_init__(self) -> None:
        self._spreads = {labels: self._empty() for labels in self.known}

    def _empty(self) -> Spread:
        return Spread([0] * (len(self.family.bounds) + 1))

    def add(self, value: float, *labels: str) -> None:
        """Count a value."""
        spread = self._spreads.get(labels)
        if spread is None:
            spread = self._spreads[labels] = self._empty()
        spread.buckets[bisect_left(self.family.bounds, value)] += 1
        spread.total += value

    def values(self) -> Mapping[Labels, Spread]:
        """What has been counted."""
        return {labels: Spread(list(spread.buckets), spread.total) for labels, spread in self._spreads.items()}
