"""Which streams take part in the next step: run-ahead, waiting for drafts, and the share of prefill.

A stream that nobody drafts for always runs. One that is drafted for may be held until its draft arrives, when that
saves target passes (the cost policy); it never waits longer than its patience, which follows how long drafts took to
arrive so far and halves each time none came; after a few such misses the stream runs like one nobody drafts for,
until a draft arrives again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from ..protocol.messages import Policy
from .stream import VerifierStream, Work

__all__ = ["Plan", "RunAhead", "Scheduler"]

_LEAST_PATIENCE = 0.05
_MOST_PATIENCE = 2.0
_FIRST_PATIENCE = 0.5
_MISSES = 4


class RunAhead(Enum):
    """Whether the verifier advances a stream whose drafts have not arrived."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step's work; when there is none, ``wake_at`` says when a held stream's patience ends, if one is held."""

    work: list[Work]
    wake_at: float | None = None


class Scheduler:
    """Plans steps.

    Args:
        run_ahead: ``auto`` runs ahead for streams that ask for latency, and holds those that ask for cost.
        max_block: draft tokens verified of one stream in one step.
        prefill_chunk: prompt tokens computed in one step, shared by the streams that are reading their prompts.
    """

    def __init__(self, *, run_ahead: RunAhead = RunAhead.AUTO, max_block: int = 16, prefill_chunk: int = 256) -> None:
        self._run_ahead = run_ahead
        self._max_block = max_block
        self._prefill_chunk = prefill_chunk

    def plan(self, streams: Iterable[VerifierStream], now: float) -> Plan:
        """Choose the work of the next step."""
        work: list[Work] = []
        wake_at: float | None = None
        prefill_left = self._prefill_chunk
        for stream in streams:
            held_until = self._held_until(stream)
            if held_until > now:
                wake_at = held_until if wake_at is None else min(wake_at, held_until)
                continue
            if stream.prefilling and prefill_left <= 0:
                continue
            share = stream.work(max_block=self._max_block, prefill_chunk=max(1, prefill_left))
            if stream.prefilling:
                prefill_left -= len(share.block.tokens)
            work.append(share)
        return Plan(work, None if work else wake_at)

    def _held_until(self, stream: VerifierStream) -> float:
        """Until when the stream waits for a draft; 0 when it does not wait."""
        if stream.prefilling or not stream.request.drafting or stream.proposed():
            return 0.0
        if stream.remaining == 1 or stream.misses >= _MISSES or not self._waits(stream):  # nobody drafts a last token
            return 0.0
        gap = stream.draft_gap
        patience = _FIRST_PATIENCE if gap is None else min(max(2 * gap, _LEAST_PATIENCE), _MOST_PATIENCE)
        return stream.waiting_since + patience * 0.5**stream.misses

    def _waits(self, stream: VerifierStream) -> bool:
        if self._run_ahead is RunAhead.AUTO:
            return stream.request.policy is Policy.COST or self._path_continues(stream)
        return self._run_ahead is RunAhead.NEVER

    @staticmethod
    def _path_continues(stream: VerifierStream) -> bool:
        """In rejection mode a token drawn without its draft would end the path, so the rest is worth waiting for."""
        params = stream.request.params
        path = stream.path
        return (
            params.mode == "rejection"
            and not params.greedy
            and stream.continues
            and path is not None
            and path.alive
            and path.end >= len(stream.sequence)
        )
