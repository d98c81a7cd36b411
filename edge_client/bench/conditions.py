"""What the benchmark varies: the network between the two ends, and the temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError
from ..wan_relay import Conditions

__all__ = ["Condition", "Net", "parse_numbers"]

_LONGEST_RTT = 10_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Net:
    """An emulated network, in the units of the command line.

    ``rtt_ms`` round trip, ``jitter`` least and most seconds one way, bandwidths in bits a second.
    """

    rtt_ms: float
    jitter: tuple[float, float] = (0.0, 0.0)
    bandwidth_up: float | None = None
    bandwidth_down: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rtt_ms <= _LONGEST_RTT:
            raise InvalidParameterError("--rtt", f"must be from 0 to {_LONGEST_RTT:g} ms, not {self.rtt_ms:g}")

    @property
    def emulated(self) -> bool:
        """Whether there is anything to emulate."""
        return bool(self.rtt_ms or self.jitter[1] or self.bandwidth_up or self.bandwidth_down)

    @property
    def relayed(self) -> Conditions:
        """The same for the relay."""
        return Conditions(
            delay=self.rtt_ms / 2000,
            jitter=self.jitter,
            bandwidth_up=self.bandwidth_up,
            bandwidth_down=self.bandwidth_down,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One cell of the grid."""

    net: Net
    temperature: float

    def __str__(self) -> str:
        return f"RTT {self.net.rtt_ms:g} ms, temperature {self.temperature:g}"


def parse_numbers(text: str, *, field: str) -> list[float]:
    """Numbers from ``5,20,50``, each once.

    Raises:
        InvalidParameterError: about ``field``.
    """
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise InvalidParameterError(field, f"must be numbers such as 5,20,50, not {text!r}") from error
    if not all(map(_is_usable, values)):
        raise InvalidParameterError(field, f"must be numbers from 0, not {text!r}")
    return _each_once(values)


def _is_usable(value: float) -> bool:
    return math.isfinite(value) and value >= 0


def _each_once(values: Sequence[float]) -> list[float]:
    return list(dict.fromkeys(values))
