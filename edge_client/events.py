"""What happens during a generation, as typed events, and its final result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .stats import Stats

__all__ = [
    "Degraded",
    "Event",
    "FinishReason",
    "Finished",
    "Reconnecting",
    "Result",
    "RoundCompleted",
    "TextDelta",
]

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "error"]
"""Why an answer ended; ``error`` only in the partial result of a generation that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """More text. ``guessed`` says whether the device had guessed its tokens.

    ``text`` never holds half a character, unless the answer itself ends inside one. ``verified`` is False where the
    tokens are the draft's alone, and not the target's: see :class:`Degraded`.
    """

    text: str
    token_ids: tuple[int, ...]
    guessed: bool
    verified: bool = True


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
    """The generation goes on, but with one half of what it should have; ``reason`` is one line for people.

    ``cloud-only`` is without the draft: the same text, perhaps later. ``draft-only`` is without a verifier, where the
    client was told that it may: what follows is the draft's own text, not the target's, to the end of the answer.
    """

    reason: str
    mode: Literal["cloud-only", "draft-only"] = "cloud-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnecting:
    """The verifier is lost, or has no room, and the client tries to go on; ``reason`` is one line for people.

    Told once until more text comes, which then goes on where it stopped.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished generation. ``token_ids`` are the answer's, a final end-of-sequence id included.

    The last ``unverified_tokens`` of them are the draft's alone, and not the target's; see :class:`Degraded`.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    prompt_tokens: int
    stats: Stats
    unverified_tokens: int = 0

    def to_dict(self) -> dict[str, object]:
        """Everything, for ``--json``."""
        fields: dict[str, object] = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        return {**fields, "token_ids": list(self.token_ids), "stats": self.stats.to_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event."""

    result: Result


Event: TypeAlias = TextDelta | RoundCompleted | Degraded | Reconnecting | Finished
