"""What came of one condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .conditions import Condition
from .expectation import measured_parts, predicted_ratio
from .figures import Figures, figures_of
from .measure import Answer
from .modes import CLOUD_ONLY, Mode

__all__ = ["Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of each mode under one condition, or why there are none.

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
    modes: tuple[Figures, ...] = ()
    variants: tuple[Figures, ...] = ()
    rtt: float | None = None
    failure: str | None = None
    complete: bool = False
    answers: Sequence[Answer] = field(default=(), repr=False)

    @classmethod
    def of(
        cls,
        condition: Condition,
        modes: Sequence[Mode],
        answers: Sequence[Answer],
        rights: Mapping[str, Sequence[bool]],
        *,
        rtt: float | None,
        complete: bool,
        failure: str | None = None,
    ) -> Outcome:
        """Make the figures.

        Args:
            condition: what was emulated.
            modes: those that were run, cloud-only among them.
            answers: to each prompt the same number in every variant of every mode.
            rights: for each prompt, where the draft is right; empty where that is not known.
            rtt: measured, in seconds.
            complete: whether these answers are all that were wanted.
            failure: why not.
        """
        if not answers:
            return cls(condition=condition, rtt=rtt, complete=complete, failure=failure)
        baseline = [answer for answer in answers if answer.mode == CLOUD_ONLY]
        variants: list[Figures] = []
        chosen: list[Figures] = []
        for mode in modes:
            ways = []
            for variant in mode.variants:
                own = [each for each in answers if (each.mode, each.variant) == (mode.name, variant.label)]
                measured = measured_parts(baseline, own, rtt=rtt) if rtt is not None else None
                predicted = predicted_ratio(mode, variant, measured, rights) if measured is not None else None
                ways.append(figures_of(own, baseline, measured=measured, predicted=predicted))
            variants += ways
            chosen.append(max(ways, key=lambda way: way.ratio.middle))
        return cls(
            condition=condition,
            modes=tuple(chosen),
            variants=tuple(variants),
            rtt=rtt,
            failure=failure,
            complete=complete,
            answers=tuple(answers),
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
            "modes": [figures.to_dict() for figures in self.modes],
            "variants": [figures.to_dict() for figures in self.variants],
            "answers": [answer.to_dict() for answer in self.answers],
        }
