"""What the prediction gives, fed with what was measured beside it under the same condition."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..prediction import speedup
from .measure import Answer
from .modes import Mode, Variant

__all__ = ["Measured", "measured_parts", "predicted_ratio"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The numbers that the prediction of one variant needs; seconds, but for ``slope``.

    Draft time and slope are the variant's own: on one machine the two ends share its memory, and slow each other down
    by how much they do at the same time.

    Attributes:
        step: the target's step over one token: mean of cloud-only steps, prompts left out. Cloud-only speed, which
            the measured ratio is to, is a mean as well.
        slope: extra share of a step for each draft token in it.
        draft: one drafting step on the device, median over the answers.
        rtt: the network's round trip, median of pings.
    """

    step: float
    slope: float
    draft: float
    rtt: float


def measured_parts(baseline: Sequence[Answer], drafted: Sequence[Answer], *, rtt: float) -> Measured | None:
    """Read the parts off answers under one condition; None where nothing was drafted or no step was timed."""
    steps = [each.computed for answer in baseline for each in answer.rounds[1:]]
    drafts = [answer.stats.draft_seconds / answer.stats.draft_steps for answer in drafted if answer.stats.draft_steps]
    if not drafts or not sum(steps):
        return None
    return Measured(
        step=(step := statistics.fmean(steps)),
        slope=_slope(step, drafted),
        draft=statistics.median(drafts),
        rtt=rtt,
    )


def _slope(step: float, drafted: Sequence[Answer]) -> float:
    """From sums, as commits do not say how many tokens a step tested, and only the end says how many in all."""
    steps = [each.computed for answer in drafted for each in answer.rounds[1:]]
    tested = sum(answer.stats.drafted for answer in drafted)
    return max(0.0, (sum(steps) / step - len(steps)) / tested) if tested else 0.0


def predicted_ratio(
    mode: Mode, variant: Variant, measured: Measured, rights: Mapping[str, Sequence[bool]]
) -> float | None:
    """Speed over cloud-only, geometric mean over the prompts; None for cloud-only itself.

    Args:
        mode, variant: whose.
        measured: the parts.
        rights: for each prompt, where the draft is right on the text of its cloud-only answer.
    """
    if mode.discipline is None or not rights:
        return None
    return statistics.geometric_mean(
        speedup(
            right,
            mode=mode.discipline,
            step=measured.step,
            draft=measured.draft,
            rtt=measured.rtt,
            slope=measured.slope,
            serial_lengths=mode.serial_lengths(variant),
        )
        for right in rights.values()
    )
