"""How long a step of the target takes, by the number of tokens in it: learned from the steps that were taken."""

from __future__ import annotations

__all__ = ["StepModel"]

_MEMORY = 0.97
"""What is left of the past at each step: about the last 30 count, so that growing contexts are followed."""

_ASSUMED_SLOPE = 0.03
_ASSUMED_WEIGHT = 10.0
"""Until blocks of several sizes were seen, a token more is taken to cost this share of a step."""

_TOLERATED = 4.0
_LEAST_DEVIATION = 1e-5


class StepModel:
    """A line through the durations of decoding steps, T(M) = a + b·M for M tokens of all streams together.

    A step may be late by accident (another process, a page fault) but never early. So one that took far longer than
    expected counts as no more than a few deviations late; where steps stay that slow, the deviation grows, and the
    line follows within some ten steps.
    """

    def __init__(self) -> None:
        self._weight = 0.0
        self._tokens = self._seconds = 0.0  # weighted means
        self._variance = self._covariance = 0.0  # weighted sums about the means
        self._deviation = 0.0

    def record(self, tokens: int, seconds: float) -> None:
        """Learn from a step over ``tokens`` tokens. Steps that read prompts are another matter; leave them out."""
        expected = self.predict(tokens)
        if expected is None:
            self._deviation = max(seconds / 4, _LEAST_DEVIATION)
        else:
            seconds = min(seconds, expected + _TOLERATED * self._deviation)
            late = max(abs(seconds - expected), expected / 50, _LEAST_DEVIATION)
            self._deviation += (late - self._deviation) / 10
        self._weight = self._weight * _MEMORY + 1.0
        apart, aside = tokens - self._tokens, seconds - self._seconds
        self._tokens += apart / self._weight
        self._seconds += aside / self._weight
        self._variance = self._variance * _MEMORY + apart * (tokens - self._tokens)
        self._covariance = self._covariance * _MEMORY + apart * (seconds - self._seconds)

    def predict(self, tokens: int) -> float | None:
        """Seconds of a step over ``tokens`` tokens, at least 1; None before the first step."""
        if not self._weight:
            return None
        return self._seconds + self._slope() * (tokens - self._tokens)

    def _slope(self) -> float:
        """Seconds a token more costs: never less than nothing, never more than what a token costs on average."""
        assumed = _ASSUMED_SLOPE * self._seconds * _ASSUMED_WEIGHT
        slope = (self._covariance + assumed) / (self._variance + _ASSUMED_WEIGHT)
        return min(max(slope, 0.0), self._seconds / self._tokens)
