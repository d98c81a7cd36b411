"""Every socket from the moment it is taken: whether there is room for one more, and who goes if there is not.

Guests, which are WebSockets and calls under way, have limits of their own; see :class:`~.doorkeeper.Doorkeeper`. All
other sockets share the places that guests leave free, and a few more that no guest can take. They have not asked for
anything yet, or ask for health, or are being told no; or they have their answer and rest. Any of them may be shown out
for a newcomer: first of those that rest, then of the others, and of the address that has most of them the one that has
done nothing for longest. So a crowd of idle sockets keeps nobody out for long, and where all places are taken health is
still told, and a refusal why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Generic, TypeVar

__all__ = ["Lobby"]

T = TypeVar("T", bound=Hashable)


class _Waiting(Generic[T]):
    """Sockets by group, and since when each waits; in each group the longest first."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[T, float]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def of(self, group: str) -> int:
        """How many there are of a group."""
        return len(self._groups.get(group, ()))

    def add(self, socket: T, group: str, now: float) -> None:
        """One that is not there yet."""
        self._groups.setdefault(group, {})[socket] = now
        self._count += 1

    def remove(self, socket: T, group: str) -> bool:
        """Whether it was there."""
        sockets = self._groups.get(group, {})
        if sockets.pop(socket, None) is None:
            return False
        if not sockets:
            del self._groups[group]
        self._count -= 1
        return True

    def longest(self, until: float, group: str | None) -> T | None:
        """Of the largest group, or of a given one, the first that waits since before ``until``."""
        groups = [self._groups.get(group, {})] if group is not None else self._groups.values()
        for sockets in sorted(groups, key=len, reverse=True):
            socket, since = next(iter(sockets.items()), (None, until))
            if socket is not None and since <= until:
                return socket
        return None


class Lobby(Generic[T]):
    """Who is inside, and who waits for how long. Times are seconds of any clock that only grows.

    Args:
        spare: places that guests cannot take.
        spare_of_group: of one group of addresses' places, those that its guests cannot take.
        rest: seconds after its answer in which nobody is shown out: what reading it takes.
        patience: the same for those without one: what an honest client takes to ask, and more.
    """

    def __init__(self, *, spare: int, spare_of_group: int, rest: float, patience: float) -> None:
        self._spare = spare
        self._spare_of_group = spare_of_group
        self._rest = rest
        self._patience = patience
        self._groups: dict[T, str] = {}
        self._resting: _Waiting[T] = _Waiting()
        self._asking: _Waiting[T] = _Waiting()
        self._seated: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._groups)

    # --- where they are -----------------------------------------------------------------------------------------

    def enter(self, socket: T, group: str, now: float) -> None:
        """One more, from a group of addresses."""
        self._groups[socket] = group
        self._asking.add(socket, group, now)

    def ask(self, socket: T, now: float) -> None:
        """It has asked for something, and is no guest's."""
        if self._lift(socket):
            self._asking.add(socket, self._groups[socket], now)

    def seat(self, socket: T) -> None:
        """It is a guest's, and stays until something else is said of it."""
        if self._lift(socket):
            self._seated[self._groups[socket]] += 1

    def rest(self, socket: T, now: float) -> None:
        """It has its answer."""
        if self._lift(socket):
            self._resting.add(socket, self._groups[socket], now)

    def leave(self, socket: T) -> None:
        """One less; saying it again changes nothing."""
        if self._lift(socket):
            del self._groups[socket]

    def _lift(self, socket: T) -> bool:
        """Take it from wherever it is; whether it is anywhere."""
        group = self._groups.get(socket)
        if group is None:
            return False
        if not self._resting.remove(socket, group) and not self._asking.remove(socket, group):
            self._seated[group] -= 1
            if not self._seated[group]:
                del self._seated[group]
        return True

    # --- whether there is room ----------------------------------------------------------------------------------

    def is_full(self, most: int) -> bool:
        """Whether somebody must go before one more is taken, where guests may have ``most`` places."""
        left = max(0, most - self._seated.total())
        return len(self._resting) + len(self._asking) >= self._spare + left

    def is_full_of(self, group: str, most: int | None) -> bool:
        """The same for one group of addresses; None is no limit."""
        if most is None:
            return False
        left = max(0, most - self._seated[group])
        return self._resting.of(group) + self._asking.of(group) >= self._spare_of_group + left

    def next_to_go(self, now: float, *, group: str | None = None) -> T | None:
        """Whom to show out, of one group or of all; None while nobody is to be."""
        rested = self._resting.longest(now - self._rest, group)
        return rested if rested is not None else self._asking.longest(now - self._patience, group)
