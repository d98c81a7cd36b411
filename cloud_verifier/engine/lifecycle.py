"""How streams begin and end: what is asked for, who gets a place, and what each is told when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ...protocol.errors import BusyError, DraftwireError, ErrorCode, ProtocolError, StreamError
from ...protocol.messages import Draft, EndReason, Error, Limits, Open, Opened
from ..targets.target import TargetInfo
from .admission import check_request
from .inbox import Outbox
from .observer import Observer
from .retained import Retained
from .roster import Roster
from .speculation import Speculation
from .stream import Key, Owner, VerifierStream
from .turnover import Turnover

__all__ = ["SHUTTING_DOWN", "Lifecycle"]

logger = logging.getLogger(__name__)

SHUTTING_DOWN = "the verifier is shutting down; open again"


class Lifecycle:
    """Obeys what clients ask of their streams, in the engine's thread.

    Args:
        roster: of the streams.
        info: of the target.
        limits: what clients were promised.
        observer: is told.
        speculation: decides what becomes of a stream's drafts.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        info: TargetInfo,
        limits: Limits,
        observer: Observer,
        speculation: Callable[[Owner, Open], Speculation],
    ) -> None:
        self.draining = False
        """Whether new streams are refused because the verifier shuts down."""
        self._roster = roster
        self._info = info
        self._limits = limits
        self._observer = observer
        self._speculation = speculation
        self._retained = Retained(most=4 * limits.max_streams)
        self._turnover = Turnover()

    def fill_places(self, now: float, outbox: Outbox) -> None:
        """Places go to those in line, and whoever has waited too long is sent away."""
        while (seating := self._roster.seat(now)) is not None:
            stream = seating.stream
            if seating.fault is not None:
                self.reject(stream, seating.fault, outbox)
            elif not stream.seated_before:
                stream.seated_before = True
                stream.waiting_since = now
                outbox.setdefault(stream.owner, []).append(Opened(stream=stream.request.stream, cached=stream.cached))
                self._observer.opened(stream, waited=now - stream.opened_at)
        for stream in self._roster.line.overdue(now):
            self.reject(stream, self._busy(stream), outbox)

    # --- what clients ask for -----------------------------------------------------------------------------------

    def open(self, owner: Owner, request: Open, outbox: Outbox) -> None:
        """A stream is asked for: it gets a place, or waits for one, or is refused."""
        try:
            if self.draining:
                raise StreamError(SHUTTING_DOWN, code=ErrorCode.SHUTTING_DOWN)
            sequence = [*self._retained.prefix(owner, request.prefix), *request.token_ids]
            check_request(request, sequence, limits=self._limits, info=self._info)
        except DraftwireError as error:
            self.refuse((owner, request.stream), error, outbox)
            return
        stream = VerifierStream(owner=owner, request=request, sequence=sequence, opened_at=time.monotonic())
        stream.speculation = self._speculation(owner, request)
        self._roster.join(stream)
        self.fill_places(stream.opened_at, outbox)
        while (leaver := self._roster.line.excess()) is not None:
            self.reject(leaver, self._busy(leaver), outbox)
        if stream.slot is None and stream.key in self._roster:
            self._observer.waiting(owner)

    def draft(self, owner: Owner, draft: Draft, arrived: float, outbox: Outbox) -> None:
        """Draft tokens have come, at ``arrived`` (monotonic seconds)."""
        stream = self._roster.get((owner, draft.stream))
        if stream is None:  # it has ended, and END crossed this draft
            return
        try:
            stream.take_draft(draft, now=arrived, max_backlog=self._limits.max_backlog)
        except ProtocolError as error:
            self.fail(stream.key, Error.of(draft.stream, error), outbox)

    def cancel(self, key: Key, outbox: Outbox) -> None:
        """END, unless the stream has ended already."""
        stream = self._roster.get(key)
        if stream is not None:
            outbox.setdefault(key[0], []).append(stream.end(EndReason.CANCELLED))
            self.finish(stream, EndReason.CANCELLED)

    # --- the ends of a stream -----------------------------------------------------------------------------------

    def finish(self, stream: VerifierStream, reason: EndReason) -> None:
        """It ends well. Nobody goes on from one that was cancelled."""
        if stream.request.retain and reason is not EndReason.CANCELLED:
            self._retained.keep(stream)
        self._roster.keep_prefix(stream)
        self._leave(stream, reason.name.lower())

    def fail(self, key: Key, error: Error, outbox: Outbox) -> None:
        """It ends with an error, of which its owner is told."""
        outbox.setdefault(key[0], []).append(error)
        self.close(key, error.code.name.lower())

    def close(self, key: Key, outcome: str) -> None:
        """It ends without a word."""
        stream = self._roster.get(key)
        if stream is not None:
            self._leave(stream, outcome)

    def drop(self, owner: Owner) -> None:
        """An owner has left: nothing of it stays but what the prefix cache knows."""
        for stream in self._roster:
            if stream.owner is owner:
                self._roster.keep_prefix(stream)
                self._leave(stream, "left")
        self._retained.forget(owner)

    def _leave(self, stream: VerifierStream, outcome: str) -> None:
        self._roster.leave(stream)
        if stream.seated_before:
            self._turnover.record(time.monotonic() - stream.opened_at)
            self._observer.ended(stream, outcome)

    def reject(self, stream: VerifierStream, error: Exception, outbox: Outbox) -> None:
        """A stream that waits for a place will not get one."""
        if stream.seated_before:
            self._leave(stream, "busy")
        self._roster.leave(stream)
        if not isinstance(error, DraftwireError):
            logger.error("a stream could not be opened", exc_info=error)
            error = StreamError("the verifier failed; open the stream again", code=ErrorCode.INTERNAL)
        self.refuse(stream.key, error, outbox)

    def refuse(self, key: Key, error: DraftwireError, outbox: Outbox) -> None:
        """ERROR for a stream; a verifier without room says when to come back."""
        busy = isinstance(error, BusyError) and error.retry_after is None
        frame = Error.of(key[1], error, retry_after_ms=self.retry_after_ms() if busy else None)
        outbox.setdefault(key[0], []).append(frame)
        self._observer.refused(key[0], frame.code.name.lower())

    def _busy(self, stream: VerifierStream) -> BusyError:
        running, most, tenant = self._roster.running, self._limits.max_streams, stream.owner.tenant
        its_own = sum(other.owner.tenant == tenant for other in running)
        if tenant.max_streams is not None and its_own >= tenant.max_streams:
            reason = _all_taken(tenant.max_streams, " that you may have")
        elif len(running) >= most:
            reason = _all_taken(most)
        else:
            reason = "there is no memory for another stream now"
        return BusyError(f"{reason}; try again later", code=ErrorCode.BUSY)

    def retry_after_ms(self) -> int:
        """When coming again is worth while."""
        places = max(1, len(self._roster.running))
        return round(1000 * self._turnover.wait(ahead=len(self._roster.line), places=places))


def _all_taken(count: int, which: str = "") -> str:
    return f"the one stream{which} is in use" if count == 1 else f"all {count} streams{which} are in use"
