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

from ...protocol.errors import ErrorCode
from ...protocol.messages import Draft, Error, Limits, Open
from ..targets.target import Target
from .inbox import FRAME_WEIGHT, Command, Inbox, Outbox, draft_weight
from .lifecycle import SHUTTING_DOWN, Lifecycle
from .observer import EngineGauges, Observer
from .prefix_cache import PrefixCache
from .roster import Roster
from .scheduler import Scheduler
from .speculation import Speculation
from .stepping import EngineCounters, Stepper
from .stream import Key, Owner
from .waiting_line import WaitingLine

__all__ = ["Engine", "EngineCounters"]

logger = logging.getLogger(__name__)

_ROOM = 1 << 16
"""Of one owner in the inbox, beyond the tokens of one whole context: what 64 busy streams draft within a step."""

_SHORT_STEP = 0.001
_GIVE_WAY = 0.0001
"""A step so short waits for no device. A Python thread that never waits leaves the others one turn in 5 ms, and the
event loop would send less than the engine makes."""

_STOP_SECONDS = 10.0


class Engine:
    """Runs a target for many streams.

    Args:
        target: used from the engine's thread alone.
        limits: what clients were promised; ``max_streams`` take part in steps at once.
        scheduler: decides who takes part in a step.
        observer: is told what happens.
        speculation: decides what becomes of a stream's drafts; by default they are used.
        most_waiting: streams that may wait for a place; any more are told that the verifier is busy.
        wait_seconds: how long each waits at most.
        prefix_tokens: tokens of the prefix cache, 0 for none.
        share_prefixes: between all tenants; otherwise each has its own, as response times tell what is in it.
    """

    def __init__(
        self,
        target: Target,
        *,
        limits: Limits,
        scheduler: Scheduler | None = None,
        observer: Observer | None = None,
        speculation: Callable[[Owner, Open], Speculation] | None = None,
        most_waiting: int = 0,
        wait_seconds: float = 10.0,
        prefix_tokens: int = 1 << 16,
        share_prefixes: bool = False,
    ) -> None:
        self.limits = limits
        self._target = target
        self._scheduler = scheduler or Scheduler()
        observer = observer or Observer()
        self._roster = Roster(
            target,
            places=limits.max_streams,
            line=WaitingLine(most=most_waiting, patience=wait_seconds),
            prefixes=PrefixCache(target, most_tokens=prefix_tokens),
            share_prefixes=share_prefixes,
        )
        self._lifecycle = Lifecycle(
            self._roster, info=target.info, limits=limits, observer=observer, speculation=speculation or _always
        )
        self._stepper = Stepper(
            target, scheduler=self._scheduler, roster=self._roster, lifecycle=self._lifecycle, observer=observer
        )
        self._inbox = Inbox(room=limits.max_context + _ROOM)
        self._wake = threading.Event()
        self._stopping = False
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
        self._stopping = self._lifecycle.draining = True
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
        for owner, stream in [*(stream.key for stream in self._roster), *asked]:
            _deliver({owner: [_shutting_down((owner, stream))]})

    def drain(self) -> None:
        """Refuse new streams from now on; those that are open go on."""
        self._lifecycle.draining = True

    @property
    def draining(self) -> bool:
        """Whether new streams are refused because the verifier shuts down."""
        return self._lifecycle.draining or self._stopping

    @property
    def busy_since(self) -> float | None:
        """When the step in progress began (monotonic seconds); None between steps."""
        return self._stepper.busy_since

    @property
    def running(self) -> bool:
        """Whether the engine's thread is alive."""
        return self._thread.is_alive()

    @property
    def counters(self) -> EngineCounters:
        """Totals since the start."""
        return self._stepper.counters

    @property
    def active_streams(self) -> int:
        """Streams that are open now, those that wait for a place included."""
        return len(self._roster)

    def gauges(self) -> EngineGauges:
        """How things stand."""
        roster, target = self._roster, self._target
        waiting = len(roster.line)
        return EngineGauges(
            running=max(0, len(roster) - waiting),
            waiting=waiting,
            kv_used_bytes=target.kv_bytes,
            kv_total_bytes=target.kv_budget,
            prefix_tokens=roster.prefixes.tokens,
            prefix_queried=roster.prefix_counters.queried,
            prefix_found=roster.prefix_counters.found,
            draining=self.draining,
        )

    def open(self, owner: Owner, request: Open) -> None:
        """Ask for a stream; the owner hears OPENED or ERROR."""
        command = Command(
            owner=owner,
            stream=request.stream,
            run=lambda outbox: self._lifecycle.open(owner, request, outbox),
            weight=FRAME_WEIGHT + len(request.token_ids),
            opens=True,
        )
        if self._stopping or not self._post(command):
            _deliver({owner: [_shutting_down((owner, request.stream))]})

    def draft(self, owner: Owner, draft: Draft) -> None:
        """Hand in draft tokens."""
        arrived = time.monotonic()
        self._post(
            Command(
                owner=owner,
                stream=draft.stream,
                run=lambda outbox: self._lifecycle.draft(owner, draft, arrived, outbox),
                weight=draft_weight(draft),
            )
        )

    def cancel(self, owner: Owner, stream: int) -> None:
        """End a stream early; the owner hears END unless the stream has ended already."""
        self._post(
            Command(owner=owner, stream=stream, run=lambda outbox: self._lifecycle.cancel((owner, stream), outbox))
        )

    def fail(self, owner: Owner, error: Error) -> None:
        """End a stream that broke the protocol; the owner has been told already."""
        key, outcome = (owner, error.stream), error.code.name.lower()
        self._post(Command(owner=owner, stream=error.stream, run=lambda _: self._lifecycle.close(key, outcome)))

    def drop(self, owner: Owner) -> None:
        """Forget everything of an owner that left; it hears nothing more."""
        self._post(Command(owner=owner, stream=0, run=lambda _: self._lifecycle.drop(owner)))

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
            began = time.monotonic()
            idle_until = self._step_safely()
            if idle_until is None and time.monotonic() - began < _SHORT_STEP:
                time.sleep(_GIVE_WAY)
            elif idle_until is not None and not self._inbox and not self._stopping:
                self._wake.wait(max(0.0, idle_until - time.monotonic()))
        self._close_down()

    def _close_down(self) -> None:
        """Whoever asked before this hears what became of it; whoever asks later is refused at the door."""
        outbox: Outbox = {}
        for command in self._inbox.close():
            self._obey(command, outbox)
        for stream in self._roster:
            self._lifecycle.fail(stream.key, _shutting_down(stream.key), outbox)
        _deliver(outbox)

    def _step_safely(self) -> float | None:
        """A fault of the engine itself must not leave clients waiting: every stream is told, and the loop goes on."""
        try:
            return self.step()
        except Exception:
            logger.exception("engine step failed")
            outbox: Outbox = {}
            for key in [stream.key for stream in self._roster]:
                self._lifecycle.fail(key, _failure(key), outbox)
            _deliver(outbox)
            return None

    def step(self) -> float | None:
        """Advance once. Returns until when there is nothing to do, or None when there may be more at once."""
        outbox: Outbox = {}
        try:
            for command in self._inbox.take():
                self._obey(command, outbox)
            started = time.monotonic()
            self._lifecycle.fill_places(started, outbox)
            plan = self._scheduler.plan(self._roster.running, started)
            if plan.work:
                self._stepper.advance(plan.work, started, outbox)
        finally:
            _deliver(outbox)  # whatever fails, what was committed before it is told
        if plan.work:
            self.counters.steps += 1
            self.counters.step_seconds += time.monotonic() - started
            return None
        wake_at = [at for at in (plan.wake_at, self._roster.line.next_overdue()) if at is not None]
        return min(wake_at, default=started + 3600.0)

    def _obey(self, command: Command, outbox: Outbox) -> None:
        """A fault in what one stream asks for is that stream's alone."""
        try:
            command.run(outbox)
        except Exception:  # whatever a target raises
            logger.exception("stream %d: what it asked for failed", command.stream)
            key = (command.owner, command.stream)
            if command.opens or key in self._roster:
                self._lifecycle.fail(key, _failure(key), outbox)


def _always(owner: Owner, request: Open) -> Speculation:
    del owner, request
    return Speculation.ON


def _deliver(outbox: Outbox) -> None:
    for owner, messages in outbox.items():
        try:
            owner.deliver(messages)
        except Exception:  # an owner that cannot listen must not keep the others from hearing
            logger.exception("an owner could not be told")


def _failure(key: Key) -> Error:
    return Error.of(key[1], "the verifier failed; open the stream again", code=ErrorCode.INTERNAL)


def _shutting_down(key: Key) -> Error:
    return Error.of(key[1], SHUTTING_DOWN, code=ErrorCode.SHUTTING_DOWN)
