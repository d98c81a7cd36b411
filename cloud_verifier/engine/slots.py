"""Slots of the target's KV cache: those of open streams, and those kept for a stream that goes on from an ended one."""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from ...protocol.errors import DraftwireError, ErrorCode, UnknownPrefixError
from ...protocol.messages import Prefix
from ..targets.target import Target
from .stream import Owner, VerifierStream

__all__ = ["Kept", "Slots"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kept:
    """An ended stream whose KV cache is kept for a later stream that starts with the same tokens."""

    stream: int
    slot: int
    sequence: list[int]
    cached: int


class Slots:
    """Takes and frees slots of a target, in the engine's thread. ``kept`` holds each owner's newest, oldest first.

    An error of ours means that nothing has changed. After any other, from a driver or a library, the slot is in doubt
    and is given up, and so is what was to be adopted.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._last = 0
        self.kept: OrderedDict[Owner, Kept] = OrderedDict()

    def find(self, owner: Owner, prefix: Prefix | None) -> Kept | None:
        """What a prefix refers to; UnknownPrefixError where it is not here."""
        if prefix is None:
            return None
        found = self.kept.get(owner)
        if found is None or found.stream != prefix.stream or prefix.length > len(found.sequence):
            raise UnknownPrefixError(
                f"stream {prefix.stream} is no longer held; send the whole prompt", code=ErrorCode.UNKNOWN_PREFIX
            )
        return found

    def open(self, capacity: int) -> int:
        """A new slot for ``capacity`` tokens; BusyError when memory is out."""
        self._last += 1
        try:
            self._target.open(self._last, capacity)
        except DraftwireError:
            raise
        except Exception:
            self.free(self._last)
            raise
        return self._last

    def adopt(self, owner: Owner, length: int, capacity: int) -> int:
        """A new slot that takes over the first ``length`` tokens of what is kept for the owner."""
        self._last += 1
        try:
            self._target.adopt(self._last, self.kept[owner].slot, length, capacity)
        except DraftwireError:
            raise
        except Exception:
            self.free(self._last)
            self.forget(owner)
            raise
        del self.kept[owner]
        return self._last

    def keep(self, stream: VerifierStream) -> None:
        """Keep an ended stream, in place of what was kept for its owner before."""
        self.forget(stream.owner)
        self.kept[stream.owner] = Kept(stream.request.stream, stream.slot, stream.sequence, stream.cached)

    def make_room(self, at_most: int) -> None:
        """Forget the oldest of what is kept, until so many are left."""
        while len(self.kept) > max(0, at_most):
            self.forget(next(iter(self.kept)))

    def forget(self, owner: Owner) -> None:
        """Free what is kept for an owner, if anything is."""
        kept = self.kept.pop(owner, None)
        if kept is not None:
            self.free(kept.slot)

    def free(self, slot: int) -> None:
        """Free a slot's memory; what fails in that must not fail whoever ends."""
        try:
            self._target.close(slot)
        except Exception:
            logger.exception("slot %d could not be freed", slot)
