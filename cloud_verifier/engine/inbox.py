"""What other threads have asked of the engine and it has not taken yet; back-pressure bounds it, client by client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from ...protocol.messages import Draft, Message
from .stream import Owner

__all__ = ["FRAME_WEIGHT", "Command", "Inbox", "Outbox", "draft_weight"]

Outbox = dict[Owner, list[Message]]

FRAME_WEIGHT = 8
"""What a frame weighs beside its tokens: an empty one takes about as much memory as eight tokens do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to do in the engine's thread; ``opens`` where the owner waits to hear of a stream not there yet."""

    owner: Owner
    stream: int
    run: Callable[[Outbox], None]
    weight: int = FRAME_WEIGHT
    opens: bool = False


class Inbox:
    """Commands in the order they came, and how much of each owner's lies here.

    Nothing is refused for its weight. Whoever reads an owner's socket asks :meth:`crowded`, and reads on when
    :meth:`when_room` says so; TCP then holds the far end back.

    Args:
        room: weight that one owner may have lying here; see :func:`draft_weight`.
    """

    def __init__(self, *, room: int) -> None:
        self._room = room
        self._lock = threading.Lock()
        self._commands: list[Command] = []
        self._weights: dict[Owner, int] = {}
        self._waiting: list[Callable[[], None]] = []
        self._closed = False

    def __len__(self) -> int:
        return len(self._commands)

    def post(self, command: Command) -> bool:
        """Add a command. False when nobody will take it any more."""
        with self._lock:
            if self._closed:
                return False
            self._commands.append(command)
            self._weights[command.owner] = self._weights.get(command.owner, 0) + command.weight
            return True

    def crowded(self, owner: Owner) -> bool:
        """Whether more of this owner's lies here than there is room for."""
        return self._weights.get(owner, 0) > self._room

    def when_room(self, owner: Owner, action: Callable[[], None]) -> None:
        """Call ``action`` once the owner is not crowded: at once, or later from another thread."""
        with self._lock:
            if self.crowded(owner) and not self._closed:
                self._waiting.append(action)
                return
        action()

    def take(self) -> list[Command]:
        """Everything that has been posted."""
        return self._take(close=False)

    def close(self) -> list[Command]:
        """Everything that has been posted, for the last time."""
        return self._take(close=True)

    def _take(self, *, close: bool) -> list[Command]:
        with self._lock:
            self._closed = self._closed or close
            commands, self._commands = self._commands, []
            waiting, self._waiting = self._waiting, []
            self._weights.clear()
        for action in waiting:
            action()
        return commands


def draft_weight(draft: Draft) -> int:
    """Its tokens, every entry of sparse q that came with them, and the frame itself."""
    return FRAME_WEIGHT + len(draft.token_ids) + sum(len(q.ids) for q in draft.sparse_q or ())
