"""Whose prompts a step reads, and how much of each: equal shares, and turns where there are too many to share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, zip_longest

from .stream import PARTIES, Party, VerifierStream

__all__ = ["LEAST_SHARE", "PromptShares"]

LEAST_SHARE = 16
"""Prompt tokens that a stream reads in a step, if it reads any and has so many left."""

_REMEMBERED = 4096
"""Parties of which it is known how often they were dealt to."""


class PromptShares:
    """Deals prompt tokens: equal shares for tenants, for the addresses of each, for the owners of those, and first come
    first served within an owner.

    What one does not need goes to the others. A share has at least ``LEAST_SHARE`` tokens, because each stream costs
    something by itself. Where there are more parties than that allows they take turns, whose was longest ago first.
    Those that have not had one go first in every other step, so that a new short prompt is soon read, and last in the
    others, so that any number of them holds nobody up for good.
    """

    def __init__(self) -> None:
        self._dealt: OrderedDict[Party, int] = OrderedDict()  # how often, within each
        self._step = 0

    def share(self, streams: Sequence[VerifierStream], *, tokens: int) -> list[int]:
        """How many prompt tokens each stream reads in the next step.

        Args:
            streams: that read their prompts, in the order in which they came.
            tokens: to be read in all.
        """
        if not streams:
            return []
        given: dict[int, int] = {}
        self._step += 1
        self._deal((), streams, tokens, given)
        while len(self._dealt) > _REMEMBERED:
            self._dealt.popitem(last=False)
        parts = [given.get(id(stream), 0) for stream in streams]
        for stream, part in zip(streams, parts, strict=True):
            stream.read_at = self._step if part else stream.read_at
        return parts

    def _deal(self, within: Party, streams: Sequence[VerifierStream], tokens: int, given: dict[int, int]) -> None:
        level = len(within)
        if level == PARTIES:
            for stream in streams:
                given[id(stream)] = min(_unread([stream]), tokens)
                tokens -= given[id(stream)]
            return
        groups: dict[Party, list[VerifierStream]] = {}
        for stream in streams:
            groups.setdefault(stream.parties[level], []).append(stream)
        waiting = self._in_turn(within, list(groups.values()))
        while tokens > 0 and waiting:
            count = max(1, tokens // LEAST_SHARE)
            served, waiting = sorted(waiting[:count], key=_unread), waiting[count:]
            for others, group in zip(range(len(served), 0, -1), served, strict=True):
                share = min(tokens // others, _unread(group))
                self._deal(group[0].parties[level], group, share, given)
                tokens -= share

    def _in_turn(self, within: Party, groups: list[list[VerifierStream]]) -> list[list[VerifierStream]]:
        """Those that have had a turn and those that have not, one of each in alternation."""
        times = self._dealt[within] = self._dealt.get(within, 0) + 1
        self._dealt.move_to_end(within)
        by_turn = sorted(groups, key=_last_turn)
        new, known = ([group for group in by_turn if bool(_last_turn(group)) is had] for had in (False, True))
        first, second = (new, known) if times % 2 else (known, new)
        return [group for group in chain.from_iterable(zip_longest(first, second)) if group]


def _last_turn(streams: Sequence[VerifierStream]) -> int:
    """The step that last read of a prompt that they are still reading; 0 where none has."""
    return max(stream.read_at for stream in streams)


def _unread(streams: Sequence[VerifierStream]) -> int:
    return sum(len(stream.sequence) - stream.cached for stream in streams)
