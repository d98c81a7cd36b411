"""The addresses of verifiers that can stand in for one another, and which of them to try next. It has no clock."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Addresses"]


class Addresses:
    """Several addresses in the order given, begun at the one that served last."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = list(urls)
        self._first = 0
        self._resting: dict[str, float] = {}

    def due(self, now: float) -> list[str]:
        """Those to try now, in order; an address that asked to be left alone for a while is not among them."""
        ordered = self._urls[self._first :] + self._urls[: self._first]
        return [url for url in ordered if self._resting.get(url, now) <= now]

    def wait(self, now: float) -> float:
        """Seconds until one of them may be tried."""
        return max(0.0, min(self._resting.get(url, now) for url in self._urls) - now)

    def rest(self, url: str, until: float) -> None:
        """Leave an address alone until then."""
        self._resting[url] = until

    def wake(self) -> None:
        """Whoever asks anew may try them all."""
        self._resting.clear()

    def good(self, url: str) -> None:
        """It serves: the next search begins with it."""
        self._first = self._urls.index(url)
        self._resting.pop(url, None)

    def lost(self, url: str) -> None:
        """It served and does no more: the next search begins with the one after it."""
        self._first = (self._urls.index(url) + 1) % len(self._urls)
