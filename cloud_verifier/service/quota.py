"""Rates: how often somebody may do something, and when it may again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Buckets", "TokenBucket", "capacity"]


@dataclass(slots=True)
class TokenBucket:
    """Holds at most ``per_minute`` tokens and gains as many a minute; full at first.

    Attributes:
        per_minute: may be changed at any time.
        tokens: that were there at ``at`` (seconds of any clock).
    """

    per_minute: float
    tokens: float
    at: float

    @classmethod
    def full(cls, per_minute: float, *, now: float) -> TokenBucket:
        """A bucket with all its tokens."""
        return cls(per_minute, capacity(per_minute), now)

    def take(self, now: float, count: int = 1) -> float:
        """Take ``count`` tokens: 0.0. Where there are fewer, none is taken, and the seconds until there are returned.

        There are never more than :func:`capacity`.
        """
        self._gain(now)
        if self.tokens >= count:
            self.tokens -= count
            return 0.0
        return (count - self.tokens) * 60.0 / self.per_minute

    def _gain(self, now: float) -> None:
        gained = max(0.0, now - self.at) * self.per_minute / 60.0
        self.tokens = min(capacity(self.per_minute), self.tokens + gained)
        self.at = max(self.at, now)


def capacity(per_minute: float) -> float:
    """Tokens that a bucket holds at most."""
    return max(1.0, per_minute)


class Buckets:
    """A bucket for each of many names, of which the least recently used are forgotten.

    A forgotten name begins with a full bucket again. So ``most`` must be large where names cost nothing to invent.

    Args:
        most: buckets that are kept.
        clock: seconds.
    """

    def __init__(self, *, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, name: str, per_minute: float | None, *, count: int = 1) -> float:
        """Take ``count`` tokens of ``name``'s: 0.0, or the seconds until there are as many. None is no limit."""
        if per_minute is None:
            return 0.0
        now = self._clock()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket.full(per_minute, now=now)
            while len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        bucket.per_minute = per_minute
        return bucket.take(now, count)
