"""What an emulated network is like, and when it breaks: checked values, and how a command line writes them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ..protocol.errors import InvalidParameterError

__all__ = ["ABOUT_PIECES", "Conditions", "Cut", "Way", "parse_bandwidth", "parse_jitter"]

Way = Literal["up", "down"]
"""``up`` is from whoever connects to the relay's target, ``down`` the other way."""

ABOUT_PIECES = """\
A piece of data is a chunk of bytes as the relay reads it: most often one message; of more, at most 64 KiB, or with
--bandwidth a millisecond's worth or one packet. No piece overtakes another."""
"""For the help of commands that take ``--jitter``."""

_LONGEST = 60.0
_SUFFIXES = {"k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """An emulated network.

    Attributes:
        delay: seconds that each byte takes one way; the round trip is twice that.
        jitter: seconds that a piece of data may take longer, drawn for each piece: the most, or the least and the most.
            A piece is a chunk of bytes as the relay reads it.
        bandwidth_up: bits a second from the client to the target; None is no limit.
        bandwidth_down: bits a second from the target to the client.

    Raises:
        InvalidParameterError: naming the first field that cannot be.
    """

    delay: float = 0.0
    jitter: float | tuple[float, float] = 0.0
    bandwidth_up: float | None = None
    bandwidth_down: float | None = None

    def __post_init__(self) -> None:
        _check_seconds("delay", self.delay)
        if isinstance(self.jitter, tuple) and len(self.jitter) != 2:
            raise InvalidParameterError("jitter", f"must be the most, or the least and the most, not {self.jitter!r}")
        low, high = self.jitter_range
        _check_seconds("jitter", low)
        _check_seconds("jitter", high)
        if low > high:
            raise InvalidParameterError("jitter", f"the least must not be over the most, as {low:g} is over {high:g}")
        for way in ("bandwidth_up", "bandwidth_down"):
            _check_bandwidth(way, getattr(self, way))

    @property
    def jitter_range(self) -> tuple[float, float]:
        """Least and most seconds of jitter."""
        return self.jitter if isinstance(self.jitter, tuple) else (0.0, self.jitter)

    def bandwidth(self, way: Way) -> float | None:
        """Bits a second in one direction; None is no limit."""
        return self.bandwidth_up if way == "up" else self.bandwidth_down


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One break of a connection; give either field.

    Attributes:
        after_seconds: this long after the connection's start.
        after_bytes: when so many bytes have been passed on in direction ``way``, not one more.
        way: the direction in which bytes count.

    Raises:
        InvalidParameterError: naming the field that cannot be.
    """

    after_seconds: float | None = None
    after_bytes: int | None = None
    way: Way = "down"

    def __post_init__(self) -> None:
        if (self.after_seconds is None) == (self.after_bytes is None):
            raise InvalidParameterError("after_seconds", "give either this or after_bytes")
        if self.after_seconds is not None and not (_is_number(self.after_seconds) and 0 <= self.after_seconds < 1e9):
            raise InvalidParameterError("after_seconds", f"must be seconds from 0, not {self.after_seconds!r}")
        if self.after_bytes is not None and not (type(self.after_bytes) is int and self.after_bytes > 0):
            raise InvalidParameterError("after_bytes", f"must be a whole number above 0, not {self.after_bytes!r}")
        if self.way not in ("up", "down"):
            raise InvalidParameterError("way", f"must be 'up' or 'down', not {self.way!r}")


def parse_bandwidth(text: str, *, field: str) -> tuple[float, float]:
    """Bits a second up and down from ``2M`` (both ways) or ``100k/2M`` (up/down); suffixes k, M and G are decimal.

    Raises:
        InvalidParameterError: about ``field``.
    """
    parts = text.split("/")
    try:
        values = [float(part.rstrip("kMG")) * _SUFFIXES.get(part[-1:], 1.0) for part in parts]
        valid = len(parts) <= 2 and all(1 <= value < math.inf for value in values)
        valid = valid and all(len(part) - len(part.rstrip("kMG")) <= 1 for part in parts)
    except ValueError:
        valid = False
    if not valid:
        raise InvalidParameterError(field, f"must be bits a second such as 100k, 2M or 100k/2M (up/down), not {text!r}")
    return values[0], values[-1]


def parse_jitter(text: str, *, field: str) -> tuple[float, float]:
    """Least and most seconds from ``5`` (0 to 5 ms) or ``1-5``.

    Raises:
        InvalidParameterError: about ``field``.
    """
    low, dash, high = text.partition("-")
    try:
        seconds = (float(low) / 1000, float(high) / 1000) if dash else (0.0, float(low) / 1000)
    except ValueError:
        seconds = (math.nan, math.nan)
    if not 0 <= seconds[0] <= seconds[1] < _LONGEST:
        raise InvalidParameterError(field, f"must be milliseconds such as 5 or 1-5, below a minute, not {text!r}")
    return seconds


def _check_seconds(field: str, value: float) -> None:
    if not _is_number(value) or not 0 <= value < _LONGEST:
        raise InvalidParameterError(field, f"must be from 0 to {_LONGEST:g} seconds, not {value!r}")


def _check_bandwidth(field: str, value: float | None) -> None:
    if value is not None and (not _is_number(value) or not 1 <= value < math.inf):
        raise InvalidParameterError(field, f"must be at least 1 bit a second, or None for no limit, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
