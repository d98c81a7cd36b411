"""What the measured parts of a pair let one expect: speed with and without a draft, here and at other distances.

No I/O: :class:`Measured` is what a check-up found; the rest follows from it by ``prediction.py``.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Literal, TypeAlias

from .prediction import Discipline, Prediction, predict

__all__ = [
    "ANSWER",
    "DISTANCES",
    "PAYS",
    "STEEPEST",
    "DraftFault",
    "DraftMeasured",
    "Forecast",
    "Measured",
    "forecast",
    "forecasts",
    "typical_rights",
]

DISTANCES = (0.005, 0.020, 0.050, 0.100, 0.200)
"""Round trips in seconds: the same town, the same country, the same continent, across an ocean, around the world."""

PAYS = 1.05
"""Speed over cloud-only from which a draft is worth its energy; less than that no reader notices."""

ANSWER = 128
"""Tokens of the answer that is predicted: in a shorter one the first round trip weighs more than it usually does."""

STEEPEST = 1.0
"""Most that a draft token in a step is taken to cost, in steps: what looks like more is a machine that was busy."""

_PHASES = (-0.4, -0.2, 0.0, 0.2, 0.4)
"""Parts of a step by which the round trip is varied. Real drafts come now a little sooner, now a little later; of one
fixed round trip it would be chance whether each just misses a step or just makes it."""

_ELSEWHERE = 0.382
"""Part of a sample by which each repeat is shifted: the golden section's, so that all shifts differ."""

_BLOCKS = (16, 4, 2, 1)
"""Most draft tokens in a step, of which the best is taken: the verifier leaves those out that cost more than they
bring."""

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
        slope: extra share of a step for each draft token in it, as measured, however large.
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
        answer: least tokens of the answer; samples that are shorter are continued with the others.

    Returns:
        None where there is no draft and ``draft`` or ``rights`` is not given. The speed without a draft is a token a
        step, but never more than was measured. With run-ahead the speed is never below that: drafts that cost more
        than they bring are left out.
    """
    known = measured.draft
    draft = known.streaming if draft is None and known is not None else draft
    rights = known.rights.values() if rights is None and known is not None else rights
    if draft is None or rights is None:
        return None
    pair = _Pair(step=measured.step, draft=draft, slope=min(measured.slope, STEEPEST))
    rtt = measured.rtt if rtt is None else rtt
    texts = _texts(list(rights), answer)

    def ratio(predictions: list[Prediction]) -> float:
        return statistics.geometric_mean(measured.step / each.seconds_per_token for each in predictions)

    run_ahead = [min(pair.continuous(text, "run_ahead", rtt), pair.plain, key=_seconds) for text in texts]
    return Forecast(
        rtt=rtt,
        cloud_only=min(1 / measured.step, measured.rate),
        run_ahead=ratio(run_ahead),
        waiting=ratio([pair.continuous(text, "waiting", rtt) for text in texts]),
        serial=ratio([pair.serial(text, rtt) for text in texts]),
        passes_per_token=statistics.fmean(each.passes_per_token for each in run_ahead),
    )


def forecasts(measured: Measured, *, rtts: Sequence[float] = DISTANCES) -> list[Forecast]:
    """The measured pair here and at other round trips, nearest first; empty without a draft.

    Here is as :func:`forecast` says; no nearer place is slower than that, and no farther one faster.
    """
    here = forecast(measured)
    if here is None:
        return []
    elsewhere = [there for rtt in rtts if (there := forecast(measured, rtt=rtt)) is not None]
    nearer = sorted((there for there in elsewhere if there.rtt < here.rtt), key=lambda there: -there.rtt)
    farther = sorted((there for there in elsewhere if there.rtt >= here.rtt), key=lambda there: there.rtt)
    return [*reversed(_in_order([here, *nearer], max)), *_in_order([here, *farther], min)[1:]]


def _in_order(ordered: Sequence[Forecast], better: Callable[[float, float], float]) -> list[Forecast]:
    """Each at least (or at most) as fast as the one before: what is left of chance must not look like a reason."""
    kept = [ordered[0]]
    for there in ordered[1:]:
        before = kept[-1]
        kept.append(
            replace(
                there,
                run_ahead=better(there.run_ahead, before.run_ahead),
                waiting=better(there.waiting, before.waiting),
                serial=better(there.serial, before.serial),
            )
        )
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Target and draft: seconds of a step and of a drafted token, and the share of a step that one costs in it."""

    step: float
    draft: float
    slope: float

    @property
    def plain(self) -> Prediction:
        """Without drafts in any step."""
        return Prediction(self.step, 1.0)

    def continuous(self, right: Sequence[bool], mode: Discipline, rtt: float) -> Prediction:
        """With the block that suits the text, on average over phases of the step."""
        most = min(rtt, self.step)  # no round trip is less than nothing
        rtts = [rtt + phase * most for phase in _PHASES] if most else [rtt]
        return min((self._average(right, mode, rtts, block) for block in _BLOCKS), key=_seconds)

    def _average(self, right: Sequence[bool], mode: Discipline, rtts: Sequence[float], block: int) -> Prediction:
        phases = [
            predict(right, mode=mode, step=self.step, draft=self.draft, rtt=rtt, slope=self.slope, block=block)
            for rtt in rtts
        ]
        return Prediction(
            statistics.fmean(each.seconds_per_token for each in phases),
            statistics.fmean(each.passes_per_token for each in phases),
        )

    def serial(self, right: Sequence[bool], rtt: float) -> Prediction:
        """With the best number of tokens a round. There are no phases: the target waits as well."""
        return predict(right, mode="serial", step=self.step, draft=self.draft, rtt=rtt, slope=self.slope)


def _seconds(prediction: Prediction) -> float:
    return prediction.seconds_per_token


def _texts(samples: Sequence[Sequence[bool]], answer: int) -> list[list[bool]]:
    """For each sample a text of ``answer`` tokens at least: the sample, then the others, and so on.

    A short sample in which all is right says little of a long text of its kind: what follows it in a real answer is
    more like the others.
    """
    return [
        list(islice(_laps([*samples[first:], *samples[:first]]), max(len(samples[first]), answer)))
        for first in range(len(samples))
    ]


def _laps(samples: Sequence[Sequence[bool]]) -> Iterator[bool]:
    """The samples in turn, in each lap from elsewhere: text has no period that could meet the steps'."""
    for lap in count():
        for right in samples:
            start = int(_ELSEWHERE * lap * len(right)) % len(right)
            yield from (*right[start:], *right[:start])


def typical_rights(share: float) -> list[list[bool]]:
    """A made-up text in which a draft is right that often, token by token and by chance; the same one each time."""
    chance = random.Random(1)
    return [[chance.random() < share for _ in range(1024)]]
