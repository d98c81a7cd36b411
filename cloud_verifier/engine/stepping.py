"""One step: the target runs over all the work there is, and what it makes of it is committed.

    work -> target -> verify -> commit -> tell

What goes wrong in it is sorted by whose it is: one stream's, or a matter of memory, which is made.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...protocol.acceptance import Proposal, Verdict, verify_block
from ...protocol.errors import BusyError, ErrorCode, NonFiniteLogitsError
from ...protocol.messages import Error
from ..targets.target import OutOfKvMemoryError, Target
from .inbox import Outbox
from .lifecycle import Lifecycle
from .observer import CommitReport, Observer, StepReport
from .roster import Roster
from .scheduler import Scheduler
from .speculation import Speculation
from .stream import Work

__all__ = ["EngineCounters", "Stepper"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class EngineCounters:
    """Totals since the start; seconds are wall time of the engine's thread."""

    steps: int = 0
    step_seconds: float = 0.0
    target_seconds: float = 0.0
    committed: int = 0
    drafted: int = 0
    accepted: int = 0
    run_ahead: int = 0


class Stepper:
    """Advances the streams of a roster, in the engine's thread.

    Args:
        target: runs the step.
        scheduler: learns from how long it took.
        roster: whose streams they are.
        lifecycle: ends those that are over.
        observer: is told.
    """

    def __init__(
        self, target: Target, *, scheduler: Scheduler, roster: Roster, lifecycle: Lifecycle, observer: Observer
    ) -> None:
        self.counters = EngineCounters()
        self.busy_since: float | None = None
        """When the step in progress began (monotonic seconds); None between steps."""
        self._target = target
        self._scheduler = scheduler
        self._roster = roster
        self._lifecycle = lifecycle
        self._observer = observer

    def advance(self, work: list[Work], started: float, outbox: Outbox) -> None:
        """Run the target over ``work``, which began at ``started`` (monotonic seconds), and commit what comes of it."""
        while work:
            self.busy_since = started
            try:
                logits = self._target.step([share.block for share in work])
            except OutOfKvMemoryError as error:
                work = self._make_room(work, error, outbox)
                continue
            except Exception as error:  # whatever a model raises must not end the other streams
                self._observer.failed_step(error)
                self._isolate(work, error, outbox)
                return
            finally:
                self.busy_since = None
            self._conclude(work, logits, started, outbox)
            return

    def _conclude(self, work: list[Work], logits: list[NDArray[np.float32]], started: float, outbox: Outbox) -> None:
        ended = time.monotonic()
        self.counters.target_seconds += ended - started
        self._scheduler.stepped(work, ended - started)
        doubted = []
        for share, rows in zip(work, logits, strict=True):
            try:
                self._commit(share, rows, started, ended, outbox)
            except NonFiniteLogitsError as error:
                if share.last_try:
                    self._lifecycle.fail(share.stream.key, Error.of(share.stream.request.stream, error), outbox)
                else:
                    doubted.append(share)
        self._observer.stepped(
            StepReport(
                started=started,
                seconds=time.monotonic() - started,
                target_seconds=ended - started,
                blocks=[share.block for share in work],
                prompt_tokens=sum(share.prompt_tokens for share in work),
                draft_tokens=sum(share.draft_tokens for share in work),
            )
        )
        self._recompute(doubted, outbox)

    def _recompute(self, doubted: list[Work], outbox: Outbox) -> None:
        """Logits were not finite: see whether they are without the drafts, which are not the target's own text.

        A token whose keys or values are not finite spoils every row of its block, as what is masked still enters the
        products; one that was rejected does so later, until it is overwritten. The first proposal is verified all the
        same: to let it go because of what it is would change the distribution of what is committed.
        """
        for share in doubted:
            logger.debug("logits are not finite: computing them again without drafts")
            self._observer.recomputed(share.stream)
            self._target.rollback(share.block.stream, share.block.start, wipe=True)
        self.advance([share.without_drafts() for share in doubted], time.monotonic(), outbox)

    def _make_room(self, work: list[Work], error: OutOfKvMemoryError, outbox: Outbox) -> list[Work]:
        """Memory ran out: forget prefixes, or let a stream wait until there is room for it again.

        Returns the work to go on with.
        """
        made = self._roster.make_room()
        if made is None:
            self._isolate(work, error, outbox)  # nothing can be given up: the target has less than it promised
            return []
        if made.preempted is None:
            return work
        logger.debug("KV memory is full: a stream of %d tokens waits", len(made.preempted.sequence))
        self._observer.preempted(made.preempted)
        return [share for share in work if share.stream is not made.preempted]

    def _isolate(self, work: list[Work], error: Exception, outbox: Outbox) -> None:
        """A batch failed: try its streams one by one, and fail only those that fail alone."""
        for share in filter(_has_its_place, work):
            self._target.rollback(share.block.stream, share.block.start)
        if len(work) > 1:
            for share in work:
                if _has_its_place(share):  # one before it may have needed its memory
                    self.advance([share], time.monotonic(), outbox)
            return
        stream = work[0].stream
        if isinstance(error, BusyError):
            retry_after_ms = self._lifecycle.retry_after_ms()
            refusal = Error.of(stream.request.stream, error, retry_after_ms=retry_after_ms)
            self._lifecycle.fail(stream.key, refusal, outbox)
            return
        logger.error("target step failed", exc_info=error)
        failure = Error.of(stream.request.stream, "the target failed on this stream", code=ErrorCode.INTERNAL)
        self._lifecycle.fail(stream.key, failure, outbox)

    def _commit(self, share: Work, rows: NDArray[np.float32], started: float, ended: float, outbox: Outbox) -> None:
        stream = share.stream
        if stream.slot is None:  # it gave its place up while the batch was taken apart
            return
        if share.prefill:
            stream.cached += len(share.block.tokens)
            return
        first = not stream.counters.committed
        stream.counters.target_passes += 1
        verdict, accepted = _verify(share, rows)
        frame = stream.commit(verdict, share.proposals, accepted=accepted, started=started, ended=ended)
        self._target.rollback(share.block.stream, stream.cached)
        self._count(verdict, accepted, share, ended)
        outbox.setdefault(stream.owner, []).append(frame)
        if first:
            self._roster.keep_prefix(stream)  # for those with the same prompt that come meanwhile
        if stream.finished:
            end = stream.end()
            outbox[stream.owner].append(end)
            self._lifecycle.finish(stream, end.reason)

    def _count(self, verdict: Verdict, accepted: int, share: Work, ended: float) -> None:
        committed, drafted = len(verdict.tokens), len(share.proposals)
        run_ahead = share.stream.drafting and not share.proposals
        self.counters.committed += committed
        self.counters.drafted += drafted
        self.counters.accepted += accepted
        if run_ahead:
            self.counters.run_ahead += committed
        report = CommitReport(at=ended, drafted=drafted, accepted=accepted, committed=committed, run_ahead=run_ahead)
        self._observer.committed(share.stream, report)


def _has_its_place(share: Work) -> bool:
    return share.stream.slot == share.block.stream


def _verify(share: Work, rows: NDArray[np.float32]) -> tuple[Verdict, int]:
    """What a step commits for a stream, and how many of its proposals passed.

    In shadow they are verified all the same, and only the token that the target draws without them is committed.
    """
    stream = share.stream
    request = stream.request

    def verdict(proposals: Sequence[Proposal], rows: NDArray[np.float32]) -> Verdict:
        return verify_block(
            rows,
            proposals,
            params=request.params,
            history=stream.history,
            seed=request.seed,
            position=len(stream.sequence),
            stop_ids=request.stop_ids,
            budget=stream.remaining,
            withhold_bonus=len(rows) == len(proposals) or stream.withholds_bonus(proposals),
        )

    found = verdict(share.proposals, rows)
    if stream.speculation is Speculation.SHADOW and share.proposals:
        for token in found.tokens:
            stream.history.remove(token)
        return verdict([], rows[:1]), found.accepted
    return found, found.accepted
