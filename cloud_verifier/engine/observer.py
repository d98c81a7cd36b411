"""What the engine tells whoever watches it: metrics, traces, logs, guardrails. It knows none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..targets.target import Block
from .stream import Owner, VerifierStream

__all__ = ["CommitReport", "EngineGauges", "Observer", "Observers", "StepReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One step of the target; ``seconds`` with all that the engine does about it, ``target_seconds`` the model alone.

    ``prompt_tokens`` of the ``blocks``' tokens belonged to prompts, ``draft_tokens`` were proposals.
    """

    started: float
    seconds: float
    target_seconds: float
    blocks: Sequence[Block]
    prompt_tokens: int
    draft_tokens: int

    @property
    def tokens(self) -> int:
        """All tokens that the step computed."""
        return sum(len(block.tokens) for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitReport:
    """What one step did for one stream. ``drafted`` proposals were verified, the first ``accepted`` of them passed.

    ``committed`` tokens were delivered, the recovered or bonus token included; in shadow just one, whatever
    ``accepted`` says. ``run_ahead``: its client drafts, and none of its drafts was there.
    """

    at: float
    drafted: int
    accepted: int
    committed: int
    run_ahead: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineGauges:
    """How things stand; to be read from any thread. ``kv_total_bytes`` is None without a budget, ``prefix_queried`` and
    ``prefix_found`` count prompt tokens since the start.
    """

    running: int
    waiting: int
    kv_used_bytes: int
    kv_total_bytes: int | None
    prefix_tokens: int
    prefix_queried: int
    prefix_found: int
    draining: bool


class Observer:
    """Told everything by the engine, in its thread, so each of these must be quick and must not block.

    The methods do nothing here; watchers override those they need.
    """

    def refused(self, owner: Owner, code: str) -> None:
        """A stream was not opened; ``code`` is the error code's name in lower case."""

    def waiting(self, owner: Owner) -> None:
        """A stream was put in the waiting line."""

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """A stream takes part from now on; it waited so many seconds in line."""

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """Tokens of a stream became final."""

    def stepped(self, report: StepReport) -> None:
        """The target has made a step; told after its commits."""

    def failed_step(self, error: Exception) -> None:
        """The target raised instead of making a step."""

    def preempted(self, stream: VerifierStream) -> None:
        """A stream gave its KV memory up, and will be computed again."""

    def recomputed(self, stream: VerifierStream) -> None:
        """A stream's logits were not finite; its block is computed again, without drafts."""

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """A stream is over: ``stop``, ``length``, ``cancelled``, ``left``, or an error code's name in lower case."""


class Observers(Observer):
    """Several as one."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def refused(self, owner: Owner, code: str) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.refused(owner, code)

    def waiting(self, owner: Owner) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.waiting(owner)

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.opened(stream, waited=waited)

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.committed(stream, report)

    def stepped(self, report: StepReport) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.stepped(report)

    def failed_step(self, error: Exception) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.failed_step(error)

    def preempted(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.preempted(stream)

    def recomputed(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.recomputed(stream)

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        for each in self._observers:
            each.ended(stream, outcome)
