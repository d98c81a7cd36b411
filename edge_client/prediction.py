"""How fast drafting without pause is over a network: a model of the two ends, fed with a few measured numbers.

Nothing here measures. Which draft tokens are right is known beforehand, a step and a drafted token take as long as
they are said to, and frames arrive half a round trip after they left. The device drafts one path of tokens, each after
the last, as fast as it can, or in rounds; every token that is there in time is verified.

That is one way to draft, and no bound. A real run is slower by what the implementation costs; it is faster where it
leaves out doubtful tokens that only make a step longer, or where its steps took less time than those measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..protocol.errors import InvalidParameterError

__all__ = ["Discipline", "Prediction", "predict", "speedup"]

Discipline: TypeAlias = Literal["serial", "waiting", "run_ahead"]
"""Who waits for whom.

``serial``: draft some tokens, send them, wait for the verdict. ``waiting``: the device drafts on without waiting, and
the target waits for drafts. ``run_ahead``: the device drafts on, and the target steps whether or not drafts are there.
"""

_ROUNDING = 1e-6  # a token drafted just when it is looked at counts as drafted


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a committed token costs: seconds, and passes of the target."""

    seconds_per_token: float
    passes_per_token: float


def predict(
    right: Sequence[bool],
    *,
    mode: Discipline,
    step: float,
    draft: float,
    rtt: float,
    slope: float = 0.0,
    block: int = 16,
    serial_lengths: Sequence[int] | None = None,
) -> Prediction:
    """Predict one text.

    Args:
        right: for each position of the text, whether the device proposes the target's token there, given a right
            prefix.
        mode: who waits for whom.
        step: seconds of a target pass over one token.
        draft: seconds of one drafted token.
        rtt: seconds of a round trip.
        slope: extra share of ``step`` for each draft token in a pass.
        block: most draft tokens in a pass.
        serial_lengths: how many tokens ``serial`` may draft in a round, of which the fastest is taken; by default
            1 to ``block``.

    Raises:
        InvalidParameterError: naming the argument that cannot be.
    """
    _check(right, step=step, draft=draft, rtt=rtt, slope=slope, block=block)
    device = _Timing(step=step, draft=draft, rtt=rtt, slope=slope, block=block)
    if mode == "serial":
        lengths = range(1, block + 1) if serial_lengths is None else serial_lengths
        if not lengths or min(lengths) < 1:
            raise InvalidParameterError("serial_lengths", "must hold whole numbers above 0")
        rounds = (_serial(right, device, length) for length in lengths)
        return min(rounds, key=lambda each: (each.seconds_per_token, each.passes_per_token))
    if mode not in ("waiting", "run_ahead"):
        raise InvalidParameterError("mode", f"must be 'serial', 'waiting' or 'run_ahead', not {mode!r}")
    return _continuous(right, device, run_ahead=mode == "run_ahead")


def speedup(
    right: Sequence[bool],
    *,
    mode: Discipline,
    step: float,
    draft: float,
    rtt: float,
    slope: float = 0.0,
    block: int = 16,
    serial_lengths: Sequence[int] | None = None,
) -> float:
    """Speed over plain streaming, which commits a token a step whatever the round trip; see :func:`predict`."""
    predicted = predict(
        right, mode=mode, step=step, draft=draft, rtt=rtt, slope=slope, block=block, serial_lengths=serial_lengths
    )
    return step / predicted.seconds_per_token


@dataclass(frozen=True, slots=True)
class _Timing:
    step: float
    draft: float
    rtt: float
    slope: float
    block: int

    def pass_seconds(self, drafted: int) -> float:
        """Of a target pass with ``drafted`` draft tokens in it."""
        return self.step * (1 + self.slope * drafted)


def _serial(right: Sequence[bool], timing: _Timing, length: int) -> Prediction:
    """Rounds of ``length`` draft tokens, one after another; each commits what is right, and one token more."""
    seconds, committed, passes = 0.0, 0, 0
    while committed < len(right):
        seconds += length * timing.draft + timing.rtt + timing.pass_seconds(length)
        committed += _run_of_right(right, committed, length) + 1
        passes += 1
    return Prediction(seconds / committed, passes / committed)


def _continuous(right: Sequence[bool], timing: _Timing, *, run_ahead: bool) -> Prediction:
    """The device extends one path without pause; a path that was wrong is replaced half a round trip later."""
    now, committed, passes = 0.0, 0, 0
    path_start, drafting_since = 0, timing.rtt / 2  # the device hears of the prompt's end half a round trip late
    while committed < len(right):
        sent = int((now - timing.rtt / 2 - drafting_since) / timing.draft + _ROUNDING)
        arrived = path_start + max(0, sent)
        drafted = min(max(0, arrived - committed), timing.block)
        if not drafted and not run_ahead:
            now = drafting_since + (committed - path_start + 1) * timing.draft + timing.rtt / 2
            continue
        now += timing.pass_seconds(drafted)
        passes += 1
        accepted = _run_of_right(right, committed, drafted)
        committed += accepted + 1
        # The token more was the path's own guess where that was right: then the path goes on.
        if accepted < drafted or not _is_right(right, committed - 1):
            path_start, drafting_since = committed, now + timing.rtt / 2
    return Prediction(now / committed, passes / committed)


def _run_of_right(right: Sequence[bool], start: int, most: int) -> int:
    """How many positions from ``start`` on are right without a gap, ``most`` at most."""
    count = 0
    while count < most and _is_right(right, start + count):
        count += 1
    return count


def _is_right(right: Sequence[bool], position: int) -> bool:
    return position < len(right) and right[position]


def _check(right: Sequence[bool], *, step: float, draft: float, rtt: float, slope: float, block: int) -> None:
    if not len(right):
        raise InvalidParameterError("right", "must hold at least one position")
    for name, value, positive in (("step", step, True), ("draft", draft, True), ("rtt", rtt, False)):
        if not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
            raise InvalidParameterError(name, f"must be seconds {'above' if positive else 'from'} 0, not {value!r}")
    if not (math.isfinite(slope) and slope >= 0):
        raise InvalidParameterError("slope", f"must be a number from 0, not {slope!r}")
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise InvalidParameterError("block", f"must be a whole number above 0, not {block!r}")
