"""From measured answers to the result of one mode under one condition. No figure of it is computed anywhere else."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from .expectation import Measured
from .measure import Answer
from .spread import Spread, percentile

__all__ = ["ModeResult", "RoundParts", "ratios_by_prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundParts:
    """Where a round's time goes, mean milliseconds a commit.

    ``lasted`` is on the clock. The others overlap wherever drafting, frames under way and steps go on at the same
    time; only in serial mode do they add up to it.

    Attributes:
        lasted: from one commit to the next.
        draft: the device's drafting.
        wire: the round trip of a draft and its commit; None where no commit answered a draft.
        queue: drafts waiting for a step.
        target: the target's step.
    """

    lasted: float
    draft: float
    wire: float | None
    queue: float
    target: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeResult:
    """One mode under one condition, all its answers together.

    Attributes:
        mode, variant: what was measured.
        answers, tokens: how much.
        tokens_per_second: after the first token; harmonic mean over the answers.
        ratio: speed over cloud-only, prompt by prompt.
        ttft_ms: to the first token, median over the answers.
        tpot_ms: a token after the first, mean over each answer, median over the answers.
        itl_ms: from one commit to the next, at p50, p95 and p99.
        acceptance_rate: of the draft tokens tested; None where none was.
        accepted_by_position: entry i is the share of the rounds with a draft that accepted at least i + 1 tokens.
        target_passes_per_token, bytes_up_per_token, bytes_down_per_token: for a committed token.
        cpu_ms_per_token: device CPU time of drafting.
        process_cpu_ms_per_token: CPU time of the whole client, the emulated network included.
        round: where a round's time goes.
        look_ahead: most tokens drafted ahead, where the variant fixes that.
        measured: what the prediction is made from; None where nothing is predicted.
        predicted: the ratio that it gives.
        of_predicted: the ratio over the predicted one. It may be above 1: what is predicted is no bound.
    """

    mode: str
    variant: str
    answers: int
    tokens: int
    tokens_per_second: float
    ratio: Spread
    ttft_ms: float
    tpot_ms: float
    itl_ms: dict[str, float]
    acceptance_rate: float | None
    accepted_by_position: list[float]
    target_passes_per_token: float
    bytes_up_per_token: float
    bytes_down_per_token: float
    cpu_ms_per_token: float
    process_cpu_ms_per_token: float
    round: RoundParts
    look_ahead: int | None = None
    measured: Measured | None = None
    predicted: float | None = None

    @classmethod
    def of(
        cls,
        answers: Sequence[Answer],
        baseline: Sequence[Answer],
        *,
        look_ahead: int | None = None,
        measured: Measured | None = None,
        predicted: float | None = None,
    ) -> ModeResult:
        """Make the figures of one variant.

        Args:
            answers: all of one mode and variant, under one condition; at least one.
            baseline: cloud-only answers to the same prompts, as often.
            look_ahead: most tokens drafted ahead, where the variant fixes that.
            measured: what the prediction is made from.
            predicted: the ratio that it gives.
        """
        stats = [answer.stats for answer in answers]
        tokens = sum(each.committed for each in stats)
        drafted = sum(each.drafted for each in stats)
        gaps = [1000 * gap for answer in answers for gap in _gaps(answer)]
        return cls(
            mode=answers[0].mode,
            variant=answers[0].variant,
            answers=len(answers),
            tokens=tokens,
            tokens_per_second=statistics.harmonic_mean([each.tokens_per_second for each in stats]),
            ratio=Spread.of(list(ratios_by_prompt(answers, baseline).values())),
            ttft_ms=1000 * statistics.median(each.ttft_seconds or 0.0 for each in stats),
            tpot_ms=1000 * statistics.median(answer.seconds_per_token for answer in answers),
            itl_ms={f"p{share}": percentile(gaps, share / 100) for share in (50, 95, 99)},
            acceptance_rate=sum(each.accepted for each in stats) / drafted if drafted else None,
            accepted_by_position=_by_position(answers),
            target_passes_per_token=sum(each.target_passes for each in stats) / tokens,
            bytes_up_per_token=sum(each.bytes_up for each in stats) / tokens,
            bytes_down_per_token=sum(each.bytes_down for each in stats) / tokens,
            cpu_ms_per_token=1000 * sum(each.draft_cpu_seconds for each in stats) / tokens,
            process_cpu_ms_per_token=1000 * sum(answer.cpu_seconds for answer in answers) / tokens,
            round=_round_parts(answers, gaps),
            look_ahead=look_ahead,
            measured=measured,
            predicted=predicted,
        )

    @property
    def of_predicted(self) -> float | None:
        """See the class."""
        return self.ratio.middle / self.predicted if self.predicted else None

    def to_dict(self) -> dict[str, object]:
        """For ``--json``."""
        return {**asdict(self), "of_predicted": self.of_predicted}


def ratios_by_prompt(answers: Sequence[Answer], baseline: Sequence[Answer]) -> dict[str, float]:
    """Speed over cloud-only by prompt, the geometric mean over its repeats."""
    alone = {(answer.prompt, answer.repeat): answer for answer in baseline}
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for answer in answers:
        plain = alone[answer.prompt, answer.repeat]
        ratios[answer.prompt].append(plain.seconds_per_token / answer.seconds_per_token)
    return {prompt: statistics.geometric_mean(values) for prompt, values in ratios.items()}


def _gaps(answer: Answer) -> Iterator[float]:
    """Seconds from each commit to the next."""
    for before, after in zip(answer.rounds, answer.rounds[1:], strict=False):
        yield after.at - before.at


def _by_position(answers: Sequence[Answer]) -> list[float]:
    with_draft = sum(answer.stats.target_passes - answer.stats.run_ahead for answer in answers)
    longest = max(len(answer.stats.accepted_by_position) for answer in answers)
    counts = [0] * longest
    for answer in answers:
        for position, count in enumerate(answer.stats.accepted_by_position):
            counts[position] += count
    return [count / with_draft for count in counts] if with_draft > 0 else []


def _round_parts(answers: Sequence[Answer], gaps_ms: Sequence[float]) -> RoundParts:
    """The first round of an answer includes the prompt's, so it is left out of what the target computes."""
    stats = [answer.stats for answer in answers]
    rounds = [each for answer in answers for each in answer.rounds[1:]]
    trips = [each.rtt for each in rounds if each.rtt is not None]
    count = max(1, sum(each.rounds for each in stats))
    return RoundParts(
        lasted=statistics.fmean(gaps_ms) if gaps_ms else 0.0,
        draft=1000 * sum(each.draft_seconds for each in stats) / count,
        wire=1000 * statistics.fmean(trips) if trips else None,
        queue=1000 * statistics.fmean([each.queued for each in rounds]) if rounds else 0.0,
        target=1000 * statistics.fmean([each.computed for each in rounds]) if rounds else 0.0,
    )
