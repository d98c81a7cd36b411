"""What the measured parts of a pair let one expect: speed with and without a draft, here and at other distances.

No I/O: :class:`Measured` is what a check-up found; the rest follows from it by ``prediction.py``.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from .prediction import Discipline, Prediction, predict

__all__ = [
    "ANSWER",
    "DISTANCES",
    "PAYS",
    "DraftFault",
    "DraftMeasured",
    "Forecast",
    "Measured",
    "forecast",
    "typical_rights",
]

DISTANCES = (0.005, 0.020, 0.050, 0.100, 0.200)
"""Round trips in seconds: the same town, the same country, the same continent, across an ocean, around the world."""

PAYS = 1.05
"""Speed over cloud-only from which a draft is worth its energy; less than that no reader notices."""

ANSWER = 128
"""Tokens of the answer that is predicted: in a shorter one the first round trip weighs more than it usually does."""

DraftFault: TypeAlias = Literal["mismatch", "unreadable", "failing"]
"""Another vocabulary; no usable bundle; a model that does not load or run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftMeasured:
    """What was measured of a draft in use. Times in seconds.

    Attributes:
        rights: for each kind of sample, token by token, whether the device proposes what the target committed, given
            a right prefix.
        streaming: a drafting step while text streamed, median over the answers.
        alone, alone_high: the same with the device to itself, median and 90th percentile.
        cpu_share: CPU time of the drafting steps in their wall time; more than 1 with several threads.
        ratio: measured speed over cloud-only, geometric mean over the samples.
        stream_rtt: round trip of frames, without queueing and computing; None where no commit answered a draft.
        bytes_up_per_second: what drafting sent.
        quantization: of the bundle, as its manifest says.
        threads, cores: in use, and there to be used.
    """

    rights: Mapping[str, tuple[bool, ...]]
    streaming: float
    alone: float
    alone_high: float
    cpu_share: float
    ratio: float
    stream_rtt: float | None
    bytes_up_per_second: float
    quantization: str
    threads: int
    cores: int

    @property
    def shares(self) -> dict[str, float]:
        """For each kind of sample, the share of tokens that the device gets right."""
        return {task: sum(right) / len(right) for task, right in self.rights.items()}

    @property
    def share(self) -> float:
        """The same over all of them."""
        return sum(map(sum, self.rights.values())) / sum(map(len, self.rights.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a check-up found. Times in seconds.

    Attributes:
        rtt: median round trip of pings.
        jitter: by how much one ping in ten is slower than that, or more.
        step, step_high: the target's step over one token, median and 90th percentile.
        slope: extra share of a step for each draft token in it.
        rate: cloud-only tokens a second.
        tokens: how many the answers had, one kind of answer.
        draft: None where none is in use.
        fault, reason: why a draft that was given is not in use.
    """

    rtt: float
    jitter: float
    step: float
    step_high: float
    slope: float
    rate: float
    tokens: int
    draft: DraftMeasured | None = None
    fault: DraftFault | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """A prediction at one distance.

    Attributes:
        rtt: seconds.
        cloud_only: tokens a second without a draft.
        run_ahead: speed over cloud-only, with a target that never waits.
        waiting: the same with a target that waits for drafts, as under the cost policy.
        serial: the same where the device waits for each verdict too, with the best number of tokens a round.
        passes_per_token: target passes with run-ahead.
    """

    rtt: float
    cloud_only: float
    run_ahead: float
    waiting: float
    serial: float
    passes_per_token: float


def forecast(
    measured: Measured,
    *,
    rtt: float | None = None,
    draft: float | None = None,
    rights: Collection[Sequence[bool]] | None = None,
    answer: int = ANSWER,
) -> Forecast | None:
    """Predict the measured pair, or one that differs from it in a part.

    Args:
        measured: what was found.
        rtt: seconds, instead of the measured ones.
        draft: seconds of a drafted token, instead of the measured ones.
        rights: where the draft is right in each text, instead of in the samples.
        answer: least tokens of the answer; samples that are shorter are repeated.

    Returns:
        None where there is no draft and ``draft`` or ``rights`` is not given. The speed without a draft is a token a
        step, but never more than was measured.
    """
    known = measured.draft
    draft = known.streaming if draft is None and known is not None else draft
    rights = known.rights.values() if rights is None and known is not None else rights
    if draft is None or rights is None:
        return None
    rtt = measured.rtt if rtt is None else rtt
    texts = [list(right) * max(1, math.ceil(answer / len(right))) for right in rights]

    timed = partial(predict, step=measured.step, draft=draft, rtt=rtt, slope=measured.slope)

    def speeds(mode: Discipline) -> list[Prediction]:
        return [timed(text, mode=mode) for text in texts]

    def ratio(predictions: list[Prediction]) -> float:
        return statistics.geometric_mean(measured.step / each.seconds_per_token for each in predictions)

    run_ahead = speeds("run_ahead")
    return Forecast(
        rtt=rtt,
        cloud_only=min(1 / measured.step, measured.rate),
        run_ahead=ratio(run_ahead),
        waiting=ratio(speeds("waiting")),
        serial=ratio(speeds("serial")),
        passes_per_token=statistics.fmean(each.passes_per_token for each in run_ahead),
    )


def typical_rights(share: float) -> list[list[bool]]:
    """A made-up text in which a draft is right that often, token by token and by chance; the same one each time."""
    chance = random.Random(1)
    return [[chance.random() < share for _ in range(1024)]]
