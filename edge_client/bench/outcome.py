"""What came of one condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .conditions import Condition
from .expectation import measured_parts, predicted_ratio
from .measure import Answer
from .mode_result import ModeResult
from .modes import CLOUD_ONLY, Mode, Variant

__all__ = ["Collected", "Outcome"]


@dataclass(slots=True, kw_only=True)
class Collected:
    """What there is of one condition so far.

    Attributes:
        answers: to each prompt the same number in every variant of every mode.
        rtt: the network's round trip as measured, in seconds; None where it was not.
        complete: whether these answers are all that were wanted.
        failure: why not, in one line.
    """

    answers: list[Answer] = field(default_factory=list)
    rtt: float | None = None
    complete: bool = False
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of each mode under one condition, or why there are none.

    Attributes:
        condition: what was emulated.
        modes: one for each mode, of its fastest variant.
        variants: of every variant of every mode.
        rtt: the network's round trip as measured, in seconds; None where it was not.
        failure: why the condition was given up, in one line.
        complete: whether every prompt was answered; what was done before a failure or an interrupt is kept.
        answers: what the figures are made of.
    """

    condition: Condition
    modes: tuple[ModeResult, ...] = ()
    variants: tuple[ModeResult, ...] = ()
    rtt: float | None = None
    failure: str | None = None
    complete: bool = False
    answers: Sequence[Answer] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        condition: Condition,
        modes: Sequence[Mode],
        collected: Collected,
        rights: Mapping[str, Sequence[bool]] | None = None,
    ) -> Outcome:
        """Make the figures.

        Args:
            condition: what was emulated.
            modes: those that were run, cloud-only among them.
            collected: answers in these modes, and how far they go.
            rights: for each prompt, where the draft is right; None where that is not known.
        """
        variants: list[ModeResult] = []
        chosen: list[ModeResult] = []
        for mode in modes if collected.answers else ():
            ways = [_result(mode, variant, collected, rights or {}) for variant in mode.variants]
            variants += ways
            chosen.append(max(ways, key=lambda way: way.ratio.middle))
        return cls(
            condition=condition,
            modes=tuple(chosen),
            variants=tuple(variants),
            rtt=collected.rtt,
            failure=collected.failure,
            complete=collected.complete,
            answers=tuple(collected.answers),
        )

    def to_dict(self) -> dict[str, object]:
        """For ``--json``."""
        net = self.condition.net
        return {
            "rtt_ms": net.rtt_ms,
            "jitter_ms": [1000 * seconds for seconds in net.jitter],
            "bandwidth_up": net.bandwidth_up,
            "bandwidth_down": net.bandwidth_down,
            "temperature": self.condition.temperature,
            "complete": self.complete,
            "failure": self.failure,
            "measured_rtt_ms": 1000 * self.rtt if self.rtt is not None else None,
            "modes": [result.to_dict() for result in self.modes],
            "variants": [result.to_dict() for result in self.variants],
            "answers": [answer.to_dict() for answer in self.answers],
        }


def _result(mode: Mode, variant: Variant, collected: Collected, rights: Mapping[str, Sequence[bool]]) -> ModeResult:
    answers, rtt = collected.answers, collected.rtt
    baseline = [each for each in answers if each.mode == CLOUD_ONLY]
    own = [each for each in answers if (each.mode, each.variant) == (mode.name, variant.label)]
    measured = measured_parts(baseline, own, rtt=rtt) if rtt is not None else None
    predicted = predicted_ratio(mode, variant, measured, rights) if measured is not None else None
    look_ahead = variant.options.get("look_ahead")
    return ModeResult.of(own, baseline, look_ahead=look_ahead, measured=measured, predicted=predicted)
