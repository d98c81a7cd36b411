"""What happens during a generation, as typed events, and its final result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .stats import Stats

__all__ = ["Degraded", "Event", "FinishReason", "Finished", "Result", "RoundCompleted", "TextDelta"]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
"""Why an answer ended; ``error`` only in the partial result of a generation that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More text. ``guessed`` says whether the device had guessed its tokens.

    ``text`` never holds half a character, unless the answer itself ends inside one.
    """

    text: str
    token_ids: tuple[int, ...]
    guessed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted:
    """The verifier committed ``token_ids``; ``accepted`` of them were draft tokens.

    ``rtt`` is the round trip in seconds without queueing and compute, None where the commit answered no draft.
    ``block`` is how many draft tokens had arrived for the step, as far as the device can know, else None; ``queued``
    and ``computed`` are seconds.
    """

    token_ids: tuple[int, ...]
    accepted: int
    rtt: float | None
    queued: float
    computed: float
    block: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """The generation goes on, but without the draft; ``reason`` is one line for people."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished generation. ``token_ids`` are the answer's, a final end-of-sequence id included."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    prompt_tokens: int
    stats: Stats

    def to_dict(self) -> dict[str, object]:
        """Everything, for ``--json``."""
        fields: dict[str, object] = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**fields, "token_ids": list(self.token_ids), "stats": self.stats.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event."""

    result: Result


Event: TypeAlias = TextDelta | RoundCompleted | Degraded | Finished
