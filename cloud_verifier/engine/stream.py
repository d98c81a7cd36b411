"""One stream as the engine holds it: what is committed, what is proposed, and what a step would compute for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ...protocol.acceptance import Proposal, Verdict
from ...protocol.errors import FrameTooLargeError, IllegalMessageError
from ...protocol.messages import Commit, Draft, End, EndReason, Message, Open, clock_duration
from ...protocol.path import Path
from ...protocol.sampling import TokenHistory
from ..targets.target import Block
from .odds import Odds, confidence_of
from .rhythm import Due, Rhythm
from .speculation import Speculation
from .tenant import ANYBODY, Tenant

__all__ = ["PARTIES", "Arrival", "Key", "Owner", "Party", "StreamCounters", "VerifierStream", "Work"]


class Owner(Protocol):
    """Whoever opened a stream. ``deliver`` is called from the engine's thread and must not block.

    Attributes:
        tenant: whose streams they are.
        address: where it is, as one of many that share a tenant; empty where that is not known.
        route: the traffic class that was asked for; empty for none.
        request_id: names it in logs and traces.
        traceparent: the W3C trace context it came with; empty for none.
    """

    tenant: Tenant = ANYBODY
    address: str = ""
    route: str = ""
    request_id: str = ""
    traceparent: str = ""

    def deliver(self, messages: Sequence[Message]) -> None:
        """Take messages for this owner's streams, in order."""


Key: TypeAlias = tuple[Owner, int]
"""An owner, and the id that it gave its stream."""

Party: TypeAlias = tuple[Hashable, ...]
"""Whoever shares the verifier with others of its kind; see :attr:`VerifierStream.parties`."""

PARTIES = 3
"""Kinds of them."""


@dataclass(slots=True)
class StreamCounters:
    """What END reports; ratios are derived by whoever reads it."""

    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    target_passes: int = 0
    run_ahead: int = 0


@dataclass(frozen=True, slots=True)
class Arrival:
    """The latest draft frame not yet answered: its echoed send time, and when it came in (monotonic seconds)."""

    sent_at: int
    at: float


@dataclass(frozen=True, slots=True)
class Work:
    """One stream's share of a step: the block for the target, and the proposals to verify.

    The block ends with the proposals, except in the ``last_try`` of one whose logits were not finite: there the first
    proposal is judged by the row before it, and is not computed.
    """

    stream: VerifierStream
    block: Block
    proposals: list[Proposal]
    prefill: bool
    last_try: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the block that are computed only to be in the cache, not for what follows them."""
        return len(self.block.tokens) - (0 if self.prefill else self.block.rows)

    @property
    def draft_tokens(self) -> int:
        """Tokens of the block that are proposals."""
        return self.block.rows - 1

    def without_drafts(self) -> Work:
        """The same with nothing in the block but what is committed."""
        committed = self.block.tokens[: len(self.block.tokens) - self.draft_tokens]
        block = Block(self.block.stream, self.block.start, committed, 1)
        return Work(self.stream, block, self.proposals[:1], prefill=False, last_try=True)


@dataclass(slots=True, kw_only=True)
class VerifierStream:
    """State of one generation. ``sequence`` is final; ``cached`` of its tokens are in the target's KV cache.

    ``slot`` is None while it waits for a place, for the first time or, where ``seated_before``, again.

    Invariant between steps: ``cached < len(sequence)``, so that a block is never empty.

    ``speculation``: what becomes of its drafts.

    ``resting``: the client has said that it drafts no more for now; its next draft token says that it does.

    For the scheduler: ``rhythm`` and ``odds`` are what was learned of the client's drafts, ``held`` says that the
    stream was made to wait since the last usable frame or step, ``misses`` how often in a row it did so in vain,
    ``read_at`` which step last read of its prompt.
    """

    owner: Owner
    request: Open
    sequence: list[int]
    opened_at: float
    slot: int | None = None
    cached: int = 0
    seated_before: bool = False
    speculation: Speculation = Speculation.ON
    history: TokenHistory = field(init=False)
    path: Path | None = None
    continues: bool = False
    resting: bool = False
    arrival: Arrival | None = None
    rhythm: Rhythm = field(default_factory=Rhythm)
    odds: Odds = field(default_factory=Odds)
    waiting_since: float = 0.0
    held: bool = False
    misses: int = 0
    read_at: int = 0
    remaining: int = field(init=False)
    _confidences: list[int] = field(default_factory=list)
    _differs_at: int = 0
    counters: StreamCounters = field(default_factory=StreamCounters)

    def __post_init__(self) -> None:
        split = self.request.prompt_length
        self.history = TokenHistory(self.sequence[:split], self.sequence[split:])
        self.remaining = self.request.max_tokens
        self.waiting_since = self.opened_at

    @property
    def key(self) -> Key:
        """Its name in the engine."""
        return (self.owner, self.request.stream)

    @property
    def parties(self) -> tuple[Party, Party, Party]:
        """Whose it is: a tenant's, of those an address's, of those an owner's. Places and time are shared so."""
        tenant, address = self.owner.tenant, self.owner.address
        return (tenant,), (tenant, address), (tenant, address, id(self.owner))

    @property
    def drafting(self) -> bool:
        """Whether its client drafts, and drafts may be used."""
        return self.request.drafting and self.speculation is not Speculation.OFF

    # --- drafts -------------------------------------------------------------------------------------------------

    def take_draft(self, draft: Draft, *, now: float, max_backlog: int) -> None:
        """Add a DRAFT frame's tokens to the path they belong to.

        A stale path's frame is ignored. A path that disagrees with what is committed dies here, silently.

        Raises:
            IllegalMessageError: the frame leaves a gap, or a new path starts beyond what is committed.
            FrameTooLargeError: more tokens beyond the committed prefix than the verifier holds.
        """
        if self.path is not None and draft.path < self.path.id:
            return
        begins = self.path is None or draft.path > self.path.id
        if begins and draft.start > len(self.sequence):
            raise IllegalMessageError(
                f"path {draft.path} starts at {draft.start}, beyond the committed {len(self.sequence)} tokens",
                stream=draft.stream,
            )
        if begins or self.path is None:
            self.path = Path(draft.path, draft.start)
            self._confidences = []
        path = self.path
        if draft.start != path.end:
            raise IllegalMessageError(
                f"draft starts at {draft.start}, but path {path.id} ends at {path.end}", stream=draft.stream
            )
        if path.alive and path.end + len(draft.token_ids) - len(self.sequence) > max_backlog:
            raise FrameTooLargeError(f"more than {max_backlog} draft tokens are waiting", stream=draft.stream)
        self._keep_time(draft, begins, now)
        self._extend(path, draft)
        self.continues = draft.continues
        self.resting = not draft.continues and not draft.token_ids
        self.arrival = Arrival(draft.sent_at, now)
        if path.alive and path.end > len(self.sequence):  # of use; any other frame leaves a wait as it was
            self.held = False
            self.misses = 0

    def _keep_time(self, draft: Draft, begins: bool, now: float) -> None:
        if not draft.token_ids:
            return
        if begins:
            self.rhythm.path_began(draft.start, len(draft.token_ids), at=now)
        else:
            self.rhythm.path_grew(len(draft.token_ids), at=now, announced=self.continues)

    def _extend(self, path: Path, draft: Draft) -> None:
        if path.alive:
            proposals = _proposals(draft)
            path.proposals.extend(proposals)
            self._confidences.extend(draft.confidences or map(confidence_of, proposals))
            late = self.sequence[draft.start :]
            self._settle(path, draft.start, late, tested=0 if self.by_rejection else len(late))
        else:
            path.start += len(draft.token_ids)  # a dead path only has to know where it ends

    def _settle(self, path: Path, position: int, tokens: Sequence[int], *, tested: int) -> None:
        """Compare the path with ``tokens``, committed from ``position`` on, and learn from the first ``tested``.

        By rejection only a verified proposal is tested: a token drawn without it says little about it.
        """
        for offset in range(max(position, path.start) - position, min(len(tokens), path.end - position)):
            index = position + offset - path.start
            right = path.proposals[index].token == tokens[offset]
            if offset < tested:
                self.odds.record(self._confidences[index], right)
            if not right:
                self._differs_at = position + offset
                break
        if not path.settle(position, tokens):
            path.start = path.end  # its tokens must not pile up
            path.proposals.clear()
            self._confidences.clear()

    def proposed(self) -> list[Proposal]:
        """Proposals for the positions right after the committed prefix."""
        if self.path is None or self.speculation is Speculation.OFF:
            return []
        return self.path.beyond(len(self.sequence))

    def survival(self) -> list[float]:
        """For each of :meth:`proposed`, the chance that it and those before it are right."""
        proposals = len(self.proposed())
        return self.odds.survival(self._confidences[len(self._confidences) - proposals :]) if proposals else []

    @property
    def path_goes_on(self) -> bool:
        """Whether more tokens of a path that may still be right were announced."""
        return self.path is not None and self.path.alive and self.continues

    @property
    def withheld(self) -> bool:
        """Whether the next token is for the rest of the path to propose, as its bonus was withheld."""
        return self.by_rejection and self.path_goes_on and self.path is not None and self.path.end == len(self.sequence)

    def due(self, now: float) -> Due | None:
        """When the next draft token of use is expected; None when nothing is known or nothing more will come.

        On a path that goes on it follows the last frame. A path that died, or that commits have overtaken, is
        answered by a new one.
        """
        path, length = self.path, len(self.sequence)
        if path is None:
            return None
        if self.path_goes_on:
            due = self.rhythm.next_on_path(max(0, length - path.end) + 1)
            if due is not None and (path.end >= length or now <= due.until):
                return due
        return self.rhythm.next_in_answer(path.end if path.alive else self._differs_at, length)

    @property
    def prefilling(self) -> bool:
        """Whether more than the last committed token is missing from the KV cache."""
        return len(self.sequence) - self.cached > 1

    # --- one step -----------------------------------------------------------------------------------------------

    def work(self, *, max_block: int, prefill_chunk: int) -> Work:
        """What the next step computes for this stream.

        The last of ``remaining`` tokens needs no proposal: a block of n proposals commits up to n + 1 tokens.
        """
        pending = self.sequence[self.cached :]
        if len(pending) > prefill_chunk:
            return Work(self, Block(self._place(), self.cached, pending[:prefill_chunk], 1), [], prefill=True)
        proposals = self.proposed()[: min(max_block, self.remaining - 1)]
        tokens = pending + [proposal.token for proposal in proposals]
        return Work(self, Block(self._place(), self.cached, tokens, 1 + len(proposals)), proposals, prefill=False)

    def _place(self) -> int:
        assert self.slot is not None, "only streams that have a place take part in steps"
        return self.slot

    @property
    def by_rejection(self) -> bool:
        """Whether each proposal is tested against the distribution it was drawn from."""
        return self.request.params.by_rejection

    def withholds_bonus(self, proposals: Sequence[Proposal]) -> bool:
        """Whether the token after ``proposals`` must wait for the rest of the path, which is here or on its way.

        Only in rejection mode: there a token that the target draws by itself differs from the draft's, and would
        end a path that is still good. The last token of the answer has no proposal to wait for.
        """
        path = self.path
        if not self.by_rejection or path is None or not proposals or self.speculation is not Speculation.ON:
            return False
        end = len(self.sequence) + len(proposals)
        return len(proposals) < self.remaining - 1 and (path.end > end or self.continues)

    def commit(
        self,
        verdict: Verdict,
        proposals: Sequence[Proposal],
        *,
        accepted: int | None = None,
        started: float,
        ended: float,
    ) -> Commit:
        """Make a verdict final. Returns the frame that tells the client.

        The last committed token always travels as ``token``, so a budget or a stop id that cuts a block short needs
        no frame of its own.

        Args:
            verdict: the tokens to commit.
            proposals: that were verified.
            accepted: how many of them passed, where that is not the verdict's own count.
            started: when the step began (monotonic seconds).
            ended: when it ended.
        """
        position = len(self.sequence)
        self.sequence.extend(verdict.tokens)
        self.remaining -= len(verdict.tokens)
        if self.path is not None:
            tested = len(proposals) if self.by_rejection else len(verdict.tokens)
            self._settle(self.path, position, verdict.tokens, tested=tested)
        self.rhythm.committed(len(self.sequence), at=ended)
        self.cached = min(position + verdict.accepted, len(self.sequence) - 1)
        self._count(len(verdict.tokens), len(proposals), verdict.accepted if accepted is None else accepted)
        self.waiting_since = ended
        arrival, self.arrival = self.arrival, None
        passed = bool(proposals) and verdict.accepted == len(verdict.tokens) == len(proposals)
        withheld = passed and self.by_rejection and not self.finished
        return Commit(
            stream=self.request.stream,
            path=self.path.id if self.path is not None else 0,
            accepted=len(verdict.tokens) if withheld else len(verdict.tokens) - 1,
            token=None if withheld else verdict.tokens[-1],
            echo=arrival.sent_at if arrival is not None else None,
            queued=clock_duration(started - arrival.at) if arrival is not None else 0,
            computed=clock_duration(ended - started),
        )

    def _count(self, committed: int, drafted: int, accepted: int) -> None:
        counters = self.counters
        counters.drafted += drafted
        counters.accepted += accepted
        counters.committed += committed
        if self.drafting and not drafted:
            counters.run_ahead += committed

    # --- the end ------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be committed."""
        return self.remaining <= 0 or (self.counters.committed > 0 and self.sequence[-1] in self.request.stop_ids)

    def end(self, reason: EndReason | None = None) -> End:
        """The END frame; without a ``reason``, whichever of stop id and length ended the stream."""
        if reason is None:
            reason = EndReason.STOP if self.sequence[-1] in self.request.stop_ids else EndReason.LENGTH
        return End(
            stream=self.request.stream,
            reason=reason,
            prompt_tokens=self.request.prompt_length,
            committed_tokens=self.counters.committed,
            drafted_tokens=self.counters.drafted,
            accepted_tokens=self.counters.accepted,
            target_passes=self.counters.target_passes,
            run_ahead_tokens=self.counters.run_ahead,
        )


def _proposals(draft: Draft) -> list[Proposal]:
    if draft.sparse_q is None:
        return [Proposal(token) for token in draft.token_ids]
    return [Proposal(token, q) for token, q in zip(draft.token_ids, draft.sparse_q, strict=True)]
