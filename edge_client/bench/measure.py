"""One measured answer: what a generation's events and counters say, and when its commits came."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import DrafterError, VerifierError
from ..client import AsyncEdgeClient
from ..events import Degraded, Event, Finished, Result, RoundCompleted
from ..stats import Stats
from .modes import Mode, Variant
from .prompts import BenchPrompt

__all__ = ["Answer", "Round", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One commit, times in seconds.

    ``at`` since the request; ``rtt`` of the draft it answers, None where it answers none; ``queued`` the draft's wait
    for its step; ``computed`` the step.
    """

    at: float
    tokens: int
    accepted: int
    rtt: float | None
    queued: float
    computed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One prompt answered in one variant of a mode. ``cpu_seconds`` are this process's, relay included."""

    mode: str
    variant: str
    prompt: str
    task: str
    repeat: int
    seed: int
    token_ids: tuple[int, ...]
    finish_reason: str
    rounds: tuple[Round, ...]
    stats: Stats
    cpu_seconds: float

    @property
    def seconds_per_token(self) -> float:
        """After the first one."""
        rate = self.stats.tokens_per_second
        return 1 / rate if rate else 0.0

    def to_dict(self) -> dict[str, object]:
        """For ``--json``: rounds are left to the figures made of them."""
        return {
            "mode": self.mode,
            "variant": self.variant,
            "prompt": self.prompt,
            "task": self.task,
            "repeat": self.repeat,
            "seed": self.seed,
            "tokens": len(self.token_ids),
            "finish_reason": self.finish_reason,
            "process_cpu_seconds": self.cpu_seconds,
            "stats": self.stats.to_dict(),
        }


async def measure(
    client: AsyncEdgeClient,
    prompt: BenchPrompt,
    prompt_ids: Sequence[int],
    *,
    mode: Mode,
    variant: Variant,
    seed: int,
    repeat: int = 0,
    **options: Any,
) -> Answer:
    """Answer one prompt and keep what there is to know about it.

    Raises:
        DraftwireError: the generation failed, or went on without the draft it was to use, or was too short to have a
            speed.
    """
    rounds: list[Round] = []
    result: Result | None = None
    cpu_started, started = time.process_time(), time.monotonic()
    async with client.stream(list(prompt_ids), seed=seed, **variant.options, **options) as stream:
        async for event in stream:
            result = _take(event, rounds, time.monotonic() - started) or result
    if result is None:
        raise VerifierError("the generation ended without a result")
    if result.stats.committed < 2:
        raise VerifierError(f"the answer to {prompt.name} has only {result.stats.committed} token, and so no speed")
    return Answer(
        mode=mode.name,
        variant=variant.label,
        prompt=prompt.name,
        task=prompt.task,
        repeat=repeat,
        seed=seed,
        token_ids=result.token_ids,
        finish_reason=result.finish_reason,
        rounds=tuple(rounds),
        stats=result.stats,
        cpu_seconds=time.process_time() - cpu_started,
    )


def _take(event: Event, rounds: list[Round], at: float) -> Result | None:
    match event:
        case RoundCompleted():
            rounds.append(
                Round(
                    at=at,
                    tokens=len(event.token_ids),
                    accepted=event.accepted,
                    rtt=event.rtt,
                    queued=event.queued,
                    computed=event.computed,
                )
            )
        case Degraded():
            raise DrafterError(f"drafting ended early: {event.reason}")
        case Finished():
            return event.result
    return None
