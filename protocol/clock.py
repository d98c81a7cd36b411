"""What two bytes of time and one byte of probability mean on the wire."""

from __future__ import annotations

import math

from .errors import InvalidParameterError

__all__ = ["CLOCK_UNIT", "clock_duration", "clock_now", "confidence", "confidence_byte", "rtt_seconds"]

CLOCK_UNIT = 0.00025
"""Seconds of one tick: 0.25 ms, so that the 16-bit clock wraps after 16.384 s."""

_WRAP = 1 << 16
_MAX_DURATION = (1 << 32) - 1
# The wire's durations are cut to whole ticks and two clocks may run apart by a little, so a very short round trip can
# come out just below zero. Differences in the last 256 ms before the wrap are taken for that.
_NEGATIVE = _WRAP - 1024


def clock_now(seconds: float) -> int:
    """The wrapping 16-bit clock at ``seconds`` of any monotonic clock."""
    return int(seconds / CLOCK_UNIT) % _WRAP


def clock_duration(seconds: float) -> int:
    """A duration in clock units, rounded down, so that a measured RTT is never too short by more than a tick."""
    return min(max(0, int(seconds / CLOCK_UNIT)), _MAX_DURATION)


def rtt_seconds(now: int, echo: int, queued: int, computed: int) -> float:
    """Round-trip time: from sending a DRAFT to receiving the COMMIT that echoes it, less the time it was held.

    Args:
        now: :func:`clock_now` when the COMMIT arrived.
        echo, queued, computed: its fields.
    """
    ticks = (now - echo - queued - computed) % _WRAP
    return 0.0 if ticks >= _NEGATIVE else ticks * CLOCK_UNIT


def confidence_byte(probability: float) -> int:
    """The byte b for which ``2 ** (-b / 16)`` is nearest: 0 is certain, 255 at most 2 ** -15.9."""
    if math.isnan(probability):
        raise InvalidParameterError("probability", "must be a number, not NaN")
    if probability <= 0.0:
        return 255
    return min(max(0, round(-16.0 * math.log2(probability))), 255)


def confidence(byte: int) -> float:
    """The probability that a confidence byte stands for."""
    return math.exp2(-byte / 16.0)
