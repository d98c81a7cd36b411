"""What this device has measured: its draft, the network, the target, and how often it guesses right.

One object serves all streams of a client in turn, so that each starts from the device's own last figures. They never
leave the device.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any, Self

from ...protocol.calibration import Calibration
from ...protocol.errors import InvalidParameterError
from ..prediction import speedup
from .controller import Round
from .estimate import Recent, StepTime
from .survival import DEPTHS, Survival

__all__ = ["Figures"]

_VERSION = 1
_FIRST_GUESS = 4
"""Tokens that what is assumed of an unknown draft is worth."""

_POSITIONS = 512


class Figures:
    """Estimates, each following what it measures: times by medians, shares by averages that forget.

    Attributes:
        draft: seconds to draft a token.
        rtt: seconds to the verifier and back, without queueing and computing there.
        step: seconds of a target step, by draft tokens in it.
        calibration: what confidence bytes are worth.
        survival: how long paths live.
    """

    def __init__(self) -> None:
        self.draft = Recent(9)
        self.rtt = Recent(9)
        self.step = StepTime()
        self.calibration = Calibration()
        self.survival = Survival()
        self._tested = 0
        self.hit_rate = 0.65
        """The chance that a draft token not yet drafted is right, given that all before it are."""
        self.divergence = 0.5
        """The chance that a commit ends the path."""

    @property
    def known(self) -> bool:
        """Whether there is enough to predict from; a round trip not measured yet counts as none."""
        return self.draft.known and self.step.known

    def dump(self) -> dict[str, Any]:
        """Everything as plain values, for JSON: an app that keeps it starts from it the next time."""
        return {
            "version": _VERSION,
            "draft": self.draft.dump(),
            "rtt": self.rtt.dump(),
            "step": self.step.dump(),
            "calibration": self.calibration.dump(),
            "survival": self.survival.dump(),
            "tested": self._tested,
            "hit_rate": self.hit_rate,
            "divergence": self.divergence,
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Self:
        """What :meth:`dump` gave, of this version or another.

        Raises:
            InvalidParameterError: it is nothing that :meth:`dump` gives; start without it.
        """
        figures = cls()
        try:
            if dumped["version"] != _VERSION:
                return figures  # what another version measured otherwise is not worth translating
            figures.draft = Recent(values=_times(dumped["draft"]))
            figures.rtt = Recent(values=_times(dumped["rtt"]))
            figures.step = StepTime.load(_times(dumped["step"]["single"]), dumped["step"]["sums"])
            figures.calibration = Calibration.load(dumped["calibration"])
            figures.survival = Survival.load(dumped["survival"])
            figures._tested = max(0, int(dumped["tested"]))
            figures.hit_rate, figures.divergence = _share(dumped["hit_rate"]), _share(dumped["divergence"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise InvalidParameterError("figures", "are not what Figures.dump() gives; start without them") from error
        return figures

    def learn(self, round_: Round) -> None:
        """Take what a commit tells."""
        if round_.rtt is not None:
            self.rtt.add(round_.rtt)
        if round_.block is not None:
            self.step.add(round_.block, round_.computed)
        for offset, (byte, right) in enumerate(round_.tested):
            self.calibration.record(byte, right)
            self.survival.record(round_.depth + offset, right)
            self._tested += 1
            self.hit_rate += max(0.05, 1 / (self._tested + _FIRST_GUESS)) * (right - self.hit_rate)
        self.divergence = 0.95 * self.divergence + 0.05 * (not round_.kept)

    def predicted_gain(self, *, doubt: float = 1.0) -> float:
        """Speed with drafting over speed without, as the figures predict it; 1 while they are not known.

        ``doubt`` scales the chance that a token is wrong: 0.5 asks what a stretch of surer text would bring.

        The model is that of a target that never waits and a path drafted without pause, on a text that is right and
        wrong as :attr:`survival` says. The same random numbers each time, so that only figures change the answer.
        """
        draft, step = self.draft.median, self.step.seconds()
        if draft <= 0 or step <= 0:
            return 1.0
        slope = self.step.slope / step
        return speedup(self._text(doubt), mode="run_ahead", step=step, draft=draft, rtt=self.rtt.median, slope=slope)

    def _text(self, doubt: float) -> list[bool]:
        """Where the draft is right on a text of this kind; the token after a wrong one is the first of a new path."""
        wrong = [doubt * (1 - self.survival.hit(depth)) for depth in range(DEPTHS)]
        chance, depth = random.Random(1), 0
        right: list[bool] = []
        for _ in range(_POSITIONS):
            right.append(chance.random() >= wrong[min(depth, DEPTHS - 1)])
            depth = depth + 1 if right[-1] else 0
        return right


def _times(values: Iterable[float]) -> list[float]:
    times = [float(value) for value in values]
    if not all(math.isfinite(value) and value >= 0 for value in times):
        raise ValueError("not a time")
    return times


def _share(value: float) -> float:
    if not 0.0 <= float(value) <= 1.0:
        raise ValueError("not a share")
    return float(value)
