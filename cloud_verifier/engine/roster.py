"""Which streams there are: those that have a place in the target's memory and take part in steps, and those that wait.

    join -> wait -> place -> (memory runs out: give it up, wait again) -> leave

Waiting and having given up its memory are the same state: a stream without a slot, whose text is all that is needed to
go on. A place comes with memory for the whole text and some of the answer, so that nobody runs out of it while reading
a prompt. Memory is made by forgetting prefixes first, and then by taking a place: of the tenants that have several, the
one that holds most gives its newest; where each has one, the newest of all goes. So the stream that came first never
gives way to others, and one tenant's streams do not push out another's last.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ...protocol.errors import DraftwireError
from ..targets.target import OutOfKvMemoryError, Target
from .prefix_cache import BLOCK_TOKENS, PrefixCache
from .stream import PARTIES, Key, Party, VerifierStream
from .waiting_line import WaitingLine

__all__ = ["PrefixCounters", "Room", "Roster", "Seating"]

logger = logging.getLogger(__name__)

_HEADROOM = 64
"""Tokens of its answer for which a stream gets memory with its place."""


@dataclass(slots=True)
class PrefixCounters:
    """Prompt tokens that were looked for, and those of them that were found, since the start."""

    queried: int = 0
    found: int = 0


@dataclass(frozen=True, slots=True)
class Seating:
    """Who was next, and what went wrong with its place, if anything did."""

    stream: VerifierStream
    fault: Exception | None


@dataclass(frozen=True, slots=True)
class Room:
    """Memory was given back: by a stream that waits now, or by a prefix alone."""

    preempted: VerifierStream | None


class Roster:
    """All streams of an engine, in its thread.

    Args:
        target: its slots are taken and freed here alone.
        places: streams that may take part in steps at once.
        line: where the others wait.
        prefixes: what is known of texts seen before.
        share_prefixes: between all tenants; otherwise each has its own.
    """

    def __init__(
        self, target: Target, *, places: int, line: WaitingLine, prefixes: PrefixCache, share_prefixes: bool
    ) -> None:
        self.line = line
        self.prefixes = prefixes
        self.prefix_counters = PrefixCounters()
        self._target = target
        self._places = places
        self._share_prefixes = share_prefixes
        self._streams: dict[Key, VerifierStream] = {}
        self._last_slot = 0

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[VerifierStream]:
        return iter(list(self._streams.values()))

    def __contains__(self, key: Key) -> bool:
        return key in self._streams

    def get(self, key: Key) -> VerifierStream | None:
        """The stream of that name."""
        return self._streams.get(key)

    @property
    def running(self) -> list[VerifierStream]:
        """Streams that have a place, in the order in which they came."""
        return [stream for stream in self._streams.values() if stream.slot is not None]

    def join(self, stream: VerifierStream) -> None:
        """A stream comes, and waits in line; see :meth:`seat`."""
        self._streams[stream.key] = stream
        self.line.join(stream)

    def leave(self, stream: VerifierStream) -> None:
        """A stream is over."""
        self._streams.pop(stream.key, None)
        self.line.leave(stream)
        self._vacate(stream)

    # --- places -------------------------------------------------------------------------------------------------

    def seat(self, now: float) -> Seating | None:
        """Give the next in line a place; None when there is no place, no memory, or nobody.

        What the target says against a stream concerns that stream alone: it comes with the stream, which is out of
        the line then.
        """
        running = self.running
        if not self.line or len(running) >= self._places:
            return None
        places = Counter[Party](party for stream in running for party in stream.parties)
        for stream in self.line.in_order(places, may_run=lambda waiting: _within_share(waiting, places)):
            fault: Exception | None = None
            try:
                if not self._take_place(stream):
                    fault = OutOfKvMemoryError()
            except Exception as error:
                self.line.leave(stream)
                return Seating(stream, error)
            if fault is None or not running:  # memory that nobody else holds will not be there later either
                self.line.leave(stream)
                return Seating(stream, fault)
            if self.line.holds_up(stream, now):
                return None
        return None

    def _take_place(self, stream: VerifierStream) -> bool:
        """False when there is no memory, even if all that is known of earlier texts were forgotten for it."""
        capacity = len(stream.sequence) + stream.remaining
        room = len(stream.sequence) + min(stream.remaining, _HEADROOM)
        if not self._target.fits(room):
            return False
        self.prefixes.match(self._scope(stream), stream.sequence[:-1])  # what it starts with is the last to go
        while True:
            try:
                stream.slot = self._open(capacity, room)
                break
            except OutOfKvMemoryError:
                if not self.prefixes.evict():
                    return False
        self._restore(stream)
        return True

    def _open(self, capacity: int, room: int) -> int:
        self._last_slot += 1
        try:
            self._target.open(self._last_slot, capacity, room=room)
        except DraftwireError:
            raise
        except Exception:  # of a driver or a library: the slot is in doubt
            self._free(self._last_slot)
            raise
        return self._last_slot

    def _restore(self, stream: VerifierStream) -> None:
        """Take over what is known of the text; at least the last token is computed anew, for its logits."""
        assert stream.slot is not None
        blocks = self.prefixes.match(self._scope(stream), stream.sequence[:-1])
        if not stream.seated_before:
            self.prefix_counters.queried += len(stream.sequence)
        try:
            self._target.restore(stream.slot, blocks)
        except OutOfKvMemoryError:
            return
        except Exception:  # whatever it left behind in the slot, the text can be computed
            logger.exception("a prefix could not be restored")
            self._vacate(stream)
            raise
        stream.cached = len(blocks) * BLOCK_TOKENS
        if not stream.seated_before:
            self.prefix_counters.found += stream.cached

    def keep_prefix(self, stream: VerifierStream) -> None:
        """Remember what has been computed of a stream's text."""
        if stream.slot is None:
            return
        try:
            self.prefixes.keep(self._scope(stream), stream.slot, stream.sequence[: stream.cached])
        except Exception:  # it is a convenience, and must not fail the stream
            logger.exception("a prefix could not be kept")

    def make_room(self) -> Room | None:
        """Give memory back; None when there is nothing to give.

        The last stream left gives up even its own place, should the target have less memory than it promised.
        """
        running = self.running
        leaver = self._emptied(running)
        if leaver is None:
            if self.prefixes.evict():
                return Room(None)
            if not running:
                return None
            leaver = _gives_way(running)
        self._vacate(leaver)
        self.line.join(leaver)
        return Room(leaver)

    def _emptied(self, running: list[VerifierStream]) -> VerifierStream | None:
        """A stream of whose text the target has lost what it had computed, for want of memory."""
        for stream in running:
            if stream.slot is not None and self._target.length(stream.slot) < stream.cached:
                return stream
        return None

    def _vacate(self, stream: VerifierStream) -> None:
        slot, stream.slot, stream.cached = stream.slot, None, 0
        if slot is not None:
            self._free(slot)

    def _free(self, slot: int) -> None:
        """Free a slot's memory; what fails in that must not fail whoever ends."""
        try:
            self._target.close(slot)
        except Exception:
            logger.exception("slot %d could not be freed", slot)

    def _scope(self, stream: VerifierStream) -> str:
        return "" if self._share_prefixes else stream.owner.tenant.name


def _within_share(stream: VerifierStream, places: Counter[Party]) -> bool:
    most = stream.owner.tenant.max_streams
    return most is None or places[stream.parties[0]] < most


def _gives_way(running: list[VerifierStream]) -> VerifierStream:
    """Who has to wait so that the others can go on: a party's only stream just when each of its kind has but one."""
    for level in range(PARTIES):
        groups: dict[Party, list[VerifierStream]] = {}
        for stream in running:
            groups.setdefault(stream.parties[level], []).append(stream)
        several = [group for group in groups.values() if len(group) > 1]
        if not several:
            break
        running = max(several, key=lambda group: sum(len(stream.sequence) for stream in group))
    return max(reversed(running), key=lambda stream: stream.opened_at)
