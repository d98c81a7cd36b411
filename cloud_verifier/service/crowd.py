"""Who is inside: connections and calls under way, counted in all, by key and by address."""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .keys import KnownKey

__all__ = ["Crowd", "Guest", "address_group", "cancelling"]


@dataclass(slots=True, eq=False)
class Guest:
    """One connection or call under way.

    Attributes:
        name: whose limits it counts against.
        group: of addresses that it comes from, see :func:`address_group`.
        key: it was let in with; None where none was asked for.
    """

    name: str
    group: str
    key: KnownKey | None = None
    _why: str | None = None
    _leave: Callable[[str], None] | None = None

    def when_dismissed(self, leave: Callable[[str], None]) -> None:
        """Call ``leave`` with the reason once it is asked to go; at once where it has been."""
        self._leave = leave
        if self._why is not None:
            leave(self._why)

    def dismiss(self, why: str) -> None:
        """Ask it to go; asking again changes nothing."""
        if self._why is None:
            self._why = why
            if self._leave is not None:
                self._leave(why)


class Crowd:
    """All guests."""

    def __init__(self) -> None:
        self._guests: set[Guest] = set()
        self._names: Counter[str] = Counter()
        self._groups: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._guests)

    def __iter__(self) -> Iterator[Guest]:
        return iter(list(self._guests))

    def of_name(self, name: str) -> int:
        """How many count against a name."""
        return self._names[name]

    def of_group(self, group: str) -> int:
        """How many come from a group of addresses."""
        return self._groups[group]

    def enter(self, guest: Guest) -> None:
        """One more."""
        self._guests.add(guest)
        self._names[guest.name] += 1
        self._groups[guest.group] += 1

    def leave(self, guest: Guest) -> None:
        """One less; names that are not there are not remembered."""
        self._guests.discard(guest)
        for counter, name in ((self._names, guest.name), (self._groups, guest.group)):
            counter[name] -= 1
            if counter[name] <= 0:
                del counter[name]


def cancelling(task: asyncio.Task[Any] | None) -> Callable[[str], None]:
    """How a guest leaves that is a call under way in a task."""

    def leave(why: str) -> None:
        if task is not None:
            task.cancel(why)

    return leave


def address_group(address: str) -> str:
    """What is limited as one: an IPv4 address, or an IPv6 /64 network, which is what one customer gets."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
