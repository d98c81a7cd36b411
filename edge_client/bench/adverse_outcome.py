"""What came of one adversity, and whether it is within the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from .adversities import Adversity
from .conditions import Condition
from .first_token import FirstToken
from .measure import Answer
from .mode_result import ModeResult
from .modes import Mode
from .outcome import Collected, Outcome

__all__ = ["LEAST_SPEED", "MOST_FIRST", "AdverseOutcome"]

LEAST_SPEED = 0.97
"""Drafting may not be slower than this times cloud-only."""

MOST_FIRST = 1.05
"""The first token may not take longer than this times cloud-only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdverseOutcome:
    """Both modes under one adversity.

    Attributes:
        adversity: which.
        outcome: of the answers whose speed was measured.
        first_token: of these and the short ones; None where nothing was measured.
        answers: all, pair after pair.
        prompt_tokens: by the prompt's name.
    """

    adversity: Adversity
    outcome: Outcome
    first_token: FirstToken | None = None
    answers: Sequence[Answer] = field(default=(), repr=False)
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        adversity: Adversity,
        modes: Sequence[Mode],
        collected: Collected,
        *,
        short: Sequence[Answer] = (),
        prompt_tokens: Mapping[str, int] | None = None,
    ) -> AdverseOutcome:
        """Make the figures.

        Args:
            adversity: which.
            modes: cloud-only and the one compared with it.
            collected: pairs whose speed counts.
            short: further pairs, of which only the first token counts.
            prompt_tokens: how long the prompts are, by name.
        """
        condition = Condition(net=adversity.net, temperature=0.0)
        pairs = [*collected.answers, *short]
        return cls(
            adversity=adversity,
            outcome=Outcome.of(condition, modes, collected),
            first_token=FirstToken.of(pairs) if pairs else None,
            answers=pairs,
            prompt_tokens=prompt_tokens or {},
        )

    @property
    def both(self) -> tuple[ModeResult, ModeResult] | None:
        """Cloud-only and the draft's mode; None where no speed was measured."""
        return (self.outcome.modes[0], self.outcome.modes[1]) if self.outcome.modes else None

    @property
    def drafted_per_token(self) -> float:
        """Tokens that the device drafted for a committed one, where speed was measured."""
        stats = [each.stats for each in self.outcome.answers if self.both and each.mode == self.both[1].mode]
        return sum(each.draft_steps for each in stats) / max(1, sum(each.committed for each in stats))

    @property
    def slow(self) -> bool:
        """Whether drafting was slower than it may be."""
        return self.both is not None and self.both[1].ratio.middle < LEAST_SPEED

    @property
    def late(self) -> bool:
        """Whether the first token came later than it may."""
        return self.first_token is not None and self.first_token.ratio > MOST_FIRST

    @property
    def sure(self) -> bool:
        """Whether :attr:`late` is certain: where its interval holds the bound, the pairs were too few or too uneven."""
        return self.first_token is None or not self.first_token.low <= MOST_FIRST <= self.first_token.high

    def to_dict(self) -> dict[str, object]:
        """For ``--json``: the condition as in every other run of the benchmark, and what is asked here."""
        speed = None
        if self.both is not None:
            speed = {**asdict(self.both[1].ratio), "least_allowed": LEAST_SPEED, "within": not self.slow}
        first = None
        if self.first_token is not None:
            first = {**asdict(self.first_token), "most_allowed": MOST_FIRST, "within": not self.late, "sure": self.sure}
        return {
            "name": self.adversity.name,
            "about": self.adversity.about,
            "prompt_tokens": dict(self.prompt_tokens),
            **self.outcome.to_dict(),
            "speed": speed,
            "first_token": first,
            "drafted_per_token": self.drafted_per_token if self.both is not None else None,
            "answers": [answer.to_dict() for answer in self.answers],
        }
