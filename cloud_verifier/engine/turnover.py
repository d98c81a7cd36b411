"""When a place will be free: learned from how long streams take."""

from __future__ import annotations

__all__ = ["Turnover"]

_MEMORY = 0.9
_LEAST, _MOST = 1.0, 60.0


class Turnover:
    """The typical life of a stream, and what it means for whoever is told to come back."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def record(self, seconds: float) -> None:
        """A stream was open so long."""
        self._seconds = seconds if self._seconds is None else self._seconds * _MEMORY + seconds * (1 - _MEMORY)

    def wait(self, *, ahead: int, places: int) -> float:
        """Seconds after which coming again is worth while, from 1 to 60: ``ahead`` others wait for ``places``."""
        expected = (self._seconds or 0.0) * (ahead + 1) / places
        return min(max(expected, _LEAST), _MOST)
