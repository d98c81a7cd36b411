"""Sockets that have connected and not asked for anything yet: a slow trickle of headers must not hold the door."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

__all__ = ["Lobby"]

T = TypeVar("T", bound=Hashable)


class Lobby(Generic[T]):
    """Who is to be shown out."""

    def __init__(self) -> None:
        self._since: dict[T, float] = {}

    def look(self, silent: Collection[T], now: float, *, patience: float, most: int) -> list[T]:
        """Look at the sockets that have asked for nothing so far.

        Returns:
            Those first seen more than ``patience`` seconds ago, and of more than ``most`` the oldest.
        """
        self._since = {socket: self._since.get(socket, now) for socket in silent}
        oldest = sorted(self._since, key=self._since.__getitem__)
        too_many = max(0, len(oldest) - most)
        return [
            socket for index, socket in enumerate(oldest) if index < too_many or now - self._since[socket] > patience
        ]
