"""The engine: one loop, in one thread, that advances every stream the target serves.

    take what has arrived -> plan a step -> run the target -> commit -> tell the owners

Streams without drafts advance by one token a step, as ordinary streaming would; valid drafts only make a step commit
more. Other threads talk to the engine by posting to its inbox and hear from it through ``Owner.deliver``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...protocol.acceptance import verify_block
from ...protocol.errors import (
    BusyError,
    DraftwireError,
    ErrorCode,
    InvalidParameterError,
    NonFiniteLogitsError,
    ProtocolError,
    StreamError,
)
from ...protocol.messages import Commit, Draft, EndReason, Error, Limits, Open, Opened
from ..targets.target import Target
from .inbox import FRAME_WEIGHT, Command, Inbox, Outbox, draft_weight
from .scheduler import Scheduler
from .slots import Slots
from .stream import Owner, VerifierStream, Work

__all__ = ["Engine", "EngineCounters"]

logger = logging.getLogger(__name__)

Key = tuple[Owner, int]

_ROOM = 1 << 16
"""Of one owner in the inbox, beyond the tokens of one whole context: what 64 busy streams draft within a step."""

_STOP_SECONDS = 10.0
_RETRY_AFTER = 1.0
_SHUTTING_DOWN = "the verifier is shutting down; open again"


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


class Engine:
    """Runs a target for many streams.

    Args:
        target: used from the engine's thread alone.
        limits: what clients were promised; streams beyond ``max_streams`` are refused as busy.
        scheduler: decides who takes part in a step.
    """

    def __init__(self, target: Target, *, limits: Limits, scheduler: Scheduler | None = None) -> None:
        self.limits = limits
        self.counters = EngineCounters()
        self._target = target
        self._scheduler = scheduler or Scheduler()
        self._streams: dict[Key, VerifierStream] = {}
        self._slots = Slots(target)
        self._inbox = Inbox(room=limits.max_context + _ROOM)
        self._wake = threading.Event()
        self._stopping = False
        self._draining = False
        self._busy_since: float | None = None
        self._stop_by = math.inf
        self._thread = threading.Thread(target=self._run, name="draftwire-engine", daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self, *, within: float = _STOP_SECONDS) -> None:
        """Stop after the step in progress; open streams are told that the verifier shuts down.

        A step that takes more than ``within`` seconds is left to itself, and its streams are told all the same.
        """
        self._stopping = True
        self._wake.set()
        if self._thread.ident is None:
            self._close_down()
            return
        self._stop_by = min(self._stop_by, time.monotonic() + within)
        self._thread.join(max(0.0, self._stop_by - time.monotonic()))
        if self._thread.is_alive():
            self._leave_behind()

    def _leave_behind(self) -> None:
        logger.error("the target's step does not end; stopping without it")
        asked = [(command.owner, command.stream) for command in self._inbox.close() if command.opens]
        for owner, stream in [*list(self._streams), *asked]:
            _deliver({owner: [_error((owner, stream), ErrorCode.SHUTTING_DOWN, _SHUTTING_DOWN)]})

    def drain(self) -> None:
        """Refuse new streams from now on; those that are open go on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether new streams are refused because the verifier shuts down."""
        return self._draining or self._stopping

    @property
    def busy_since(self) -> float | None:
        """When the step in progress began (monotonic seconds); None between steps."""
        return self._busy_since

    @property
    def running(self) -> bool:
        """Whether the engine's thread is alive."""
        return self._thread.is_alive()

    @property
    def active_streams(self) -> int:
        """Streams that are open now."""
        return len(self._streams)

    def open(self, owner: Owner, request: Open) -> None:
        """Ask for a stream; the owner hears OPENED or ERROR."""
        command = Command(
            owner=owner,
            stream=request.stream,
            run=lambda outbox: self._open(owner, request, outbox),
            weight=FRAME_WEIGHT + len(request.token_ids),
            opens=True,
        )
        if self._stopping or not self._post(command):
            _deliver({owner: [_error((owner, request.stream), ErrorCode.SHUTTING_DOWN, _SHUTTING_DOWN)]})

    def draft(self, owner: Owner, draft: Draft) -> None:
        """Hand in draft tokens."""
        arrived = time.monotonic()
        self._post(
            Command(
                owner=owner,
                stream=draft.stream,
                run=lambda outbox: self._draft(owner, draft, arrived, outbox),
                weight=draft_weight(draft),
            )
        )

    def cancel(self, owner: Owner, stream: int) -> None:
        """End a stream early; the owner hears END unless the stream has ended already."""
        self._post(Command(owner=owner, stream=stream, run=lambda outbox: self._cancel((owner, stream), outbox)))

    def fail(self, owner: Owner, error: Error) -> None:
        """End a stream that broke the protocol; the owner has been told already."""
        stream = error.stream
        self._post(Command(owner=owner, stream=stream, run=lambda _: self._close((owner, stream))))

    def drop(self, owner: Owner) -> None:
        """Forget everything of an owner that left; it hears nothing more."""
        self._post(Command(owner=owner, stream=0, run=lambda _: self._drop(owner)))

    def crowded(self, owner: Owner) -> bool:
        """Whether so much of this owner's waits to be taken that no more of it should be read for now."""
        return self._inbox.crowded(owner)

    def when_room(self, owner: Owner, action: Callable[[], None]) -> None:
        """Call ``action`` once the owner is not crowded: at once, or later from the engine's thread."""
        self._inbox.when_room(owner, action)

    def _post(self, command: Command) -> bool:
        posted = self._inbox.post(command)
        self._wake.set()
        return posted

    # --- the loop -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            idle_until = self._step_safely()
            if idle_until is not None and not self._inbox and not self._stopping:
                self._wake.wait(max(0.0, idle_until - time.monotonic()))
        self._close_down()

    def _close_down(self) -> None:
        """Whoever asked before this hears what became of it; whoever asks later is refused at the door."""
        outbox: Outbox = {}
        for command in self._inbox.close():
            self._obey(command, outbox)
        for key in list(self._streams):
            self._fail(key, _error(key, ErrorCode.SHUTTING_DOWN, _SHUTTING_DOWN), outbox)
        _deliver(outbox)

    def _step_safely(self) -> float | None:
        """A fault of the engine itself must not leave clients waiting: every stream is told, and the loop goes on."""
        try:
            return self.step()
        except Exception:
            logger.exception("engine step failed")
            outbox: Outbox = {}
            for key in list(self._streams):
                self._fail(key, _error(key, ErrorCode.INTERNAL, "the verifier failed; open the stream again"), outbox)
            _deliver(outbox)
            return None

    def step(self) -> float | None:
        """Advance once. Returns until when there is nothing to do, or None when there may be more at once."""
        outbox: Outbox = {}
        try:
            for command in self._inbox.take():
                self._obey(command, outbox)
            started = time.monotonic()
            plan = self._scheduler.plan(self._streams.values(), started)
            if plan.work:
                self._advance(plan.work, started, outbox)
        finally:
            _deliver(outbox)  # whatever fails, what was committed before it is told
        if plan.work:
            self.counters.steps += 1
            self.counters.step_seconds += time.monotonic() - started
            return None
        return plan.wake_at if plan.wake_at is not None else started + 3600.0

    def _obey(self, command: Command, outbox: Outbox) -> None:
        """A fault in what one stream asks for is that stream's alone."""
        try:
            command.run(outbox)
        except Exception:  # whatever a target raises
            logger.exception("stream %d: what it asked for failed", command.stream)
            key = (command.owner, command.stream)
            if command.opens or key in self._streams:
                self._fail(key, _error(key, ErrorCode.INTERNAL, "the verifier failed; open the stream again"), outbox)

    def _advance(self, work: list[Work], started: float, outbox: Outbox) -> None:
        self._busy_since = started
        try:
            logits = self._target.step([share.block for share in work])
        except Exception as error:  # whatever a model raises must not end the other streams
            self._isolate(work, error, started, outbox)
            return
        finally:
            self._busy_since = None
        ended = time.monotonic()
        self.counters.target_seconds += ended - started
        self._scheduler.stepped(work, ended - started)
        for share, rows in zip(work, logits, strict=True):
            self._commit(share, rows, started, ended, outbox)

    def _isolate(self, work: list[Work], error: Exception, started: float, outbox: Outbox) -> None:
        """A batch failed: try its streams one by one, and fail only those that fail alone."""
        for share in work:
            self._target.rollback(share.stream.slot, share.block.start)
        if len(work) > 1:
            for share in work:
                self._advance([share], started, outbox)
            return
        stream = work[0].stream
        key = (stream.owner, stream.request.stream)
        if isinstance(error, BusyError):
            self._fail(key, _refusal(key, error), outbox)
            return
        logger.error("target step failed", exc_info=error)
        self._fail(key, _error(key, ErrorCode.INTERNAL, "the target failed on this stream"), outbox)

    def _commit(self, share: Work, rows: NDArray[np.float32], started: float, ended: float, outbox: Outbox) -> None:
        stream = share.stream
        if share.prefill:
            stream.cached += len(share.block.tokens)
            return
        stream.counters.target_passes += 1
        request = stream.request
        try:
            verdict = verify_block(
                rows,
                share.proposals,
                params=request.params,
                history=stream.history,
                seed=request.seed,
                position=len(stream.sequence),
                stop_ids=request.stop_ids,
                budget=stream.remaining,
                withhold_bonus=stream.withholds_bonus(share.proposals),
            )
        except NonFiniteLogitsError as error:
            key = (stream.owner, request.stream)
            self._fail(key, Error.of(request.stream, error), outbox)
            return
        frame = stream.commit(verdict, share.proposals, started=started, ended=ended)
        self._target.rollback(stream.slot, stream.cached)
        self._count(verdict.accepted, share, frame)
        outbox.setdefault(stream.owner, []).append(frame)
        if stream.finished:
            outbox[stream.owner].append(stream.end())
            self._retire(stream)

    def _count(self, accepted: int, share: Work, frame: Commit) -> None:
        committed = frame.accepted + (frame.token is not None)
        self.counters.committed += committed
        self.counters.drafted += len(share.proposals)
        self.counters.accepted += accepted
        if share.stream.request.drafting and not share.proposals:
            self.counters.run_ahead += committed

    # --- commands, in the engine's thread -----------------------------------------------------------------------

    def _open(self, owner: Owner, request: Open, outbox: Outbox) -> None:
        key = (owner, request.stream)
        try:
            stream = self._admit(owner, request)
        except DraftwireError as error:
            outbox.setdefault(owner, []).append(_refusal(key, error))
            return
        self._streams[key] = stream
        outbox.setdefault(owner, []).append(Opened(stream=request.stream, cached=stream.cached))

    def _admit(self, owner: Owner, request: Open) -> VerifierStream:
        if self.draining:
            raise StreamError(_SHUTTING_DOWN, code=ErrorCode.SHUTTING_DOWN)
        kept, length = self._slots.find(owner, request.prefix), request.prefix.length if request.prefix else 0
        sequence = [*(kept.sequence[:length] if kept is not None else ()), *request.token_ids]
        self._check(request, sequence)
        room, capacity = self.limits.max_streams - len(self._streams), len(sequence) + request.max_tokens
        if room <= 0:
            raise BusyError(f"all {self.limits.max_streams} streams are in use; try again later", code=ErrorCode.BUSY)
        if kept is None:
            self._slots.make_room(room - 1)
            cached, slot = 0, self._slots.open(capacity)
        else:
            cached = min(kept.cached, length, len(sequence) - 1)
            slot = self._slots.adopt(owner, cached, capacity)
        opened_at = time.monotonic()
        return VerifierStream(
            slot=slot, owner=owner, request=request, sequence=sequence, cached=cached, opened_at=opened_at
        )

    def _check(self, request: Open, sequence: list[int]) -> None:
        needed = len(sequence) + request.max_tokens
        if needed > self.limits.max_context:
            raise StreamError(
                f"prompt of {len(sequence)} tokens and max_tokens {request.max_tokens} exceed "
                f"the context of {self.limits.max_context}; shorten one",
                code=ErrorCode.PROMPT_TOO_LONG,
            )
        vocabulary_size = self._target.info.vocabulary_size
        named = {"logit_bias": [token for token, _ in request.params.logit_bias], "stop_ids": request.stop_ids}
        for field, tokens in named.items():
            if any(token >= vocabulary_size for token in tokens):
                raise InvalidParameterError(field, f"names token {max(tokens)}; ids end at {vocabulary_size - 1}")

    def _draft(self, owner: Owner, draft: Draft, arrived: float, outbox: Outbox) -> None:
        key = (owner, draft.stream)
        stream = self._streams.get(key)
        if stream is None:  # it has ended, and END crossed this draft
            return
        try:
            stream.take_draft(draft, now=arrived, max_backlog=self.limits.max_backlog)
        except ProtocolError as error:
            self._fail(key, Error.of(draft.stream, error), outbox)

    def _cancel(self, key: Key, outbox: Outbox) -> None:
        stream = self._streams.get(key)
        if stream is not None:
            outbox.setdefault(key[0], []).append(stream.end(EndReason.CANCELLED))
            self._close(key)

    def _retire(self, stream: VerifierStream) -> None:
        """A stream has come to its end. One that was cancelled never gets here: nobody goes on from it."""
        key = (stream.owner, stream.request.stream)
        if stream.request.retain:
            del self._streams[key]
            self._slots.keep(stream)
        else:
            self._close(key)

    def _fail(self, key: Key, error: Error, outbox: Outbox) -> None:
        outbox.setdefault(key[0], []).append(error)
        self._close(key)

    def _close(self, key: Key) -> None:
        stream = self._streams.pop(key, None)
        if stream is not None:
            self._slots.free(stream.slot)

    def _drop(self, owner: Owner) -> None:
        for key in [key for key in self._streams if key[0] is owner]:
            self._close(key)
        self._slots.forget(owner)


def _deliver(outbox: Outbox) -> None:
    for owner, messages in outbox.items():
        try:
            owner.deliver(messages)
        except Exception:  # an owner that cannot listen must not keep the others from hearing
            logger.exception("an owner could not be told")


def _error(key: Key, code: ErrorCode, message: str) -> Error:
    return Error.of(key[1], message, code=code)


def _refusal(key: Key, error: DraftwireError) -> Error:
    """ERROR for a stream; a verifier without room says when to come back."""
    busy = isinstance(error, BusyError) and error.retry_after is None
    return Error.of(key[1], error, retry_after_ms=round(1000 * _RETRY_AFTER) if busy else None)
