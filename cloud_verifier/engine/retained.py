"""What a client may refer to instead of sending it again: the tokens of its newest stream that was to be kept."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from ...protocol.errors import ErrorCode, UnknownPrefixError
from ...protocol.messages import Prefix
from .stream import Owner, VerifierStream

__all__ = ["Retained"]


@dataclass(frozen=True, slots=True)
class _Kept:
    stream: int
    sequence: list[int]


class Retained:
    """Each owner's newest, at most ``most``. Only tokens: their keys and values are the prefix cache's matter."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Owner, _Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, owner: Owner) -> bool:
        return owner in self._kept

    def prefix(self, owner: Owner, prefix: Prefix | None) -> list[int]:
        """The tokens a prefix refers to, none for None; UnknownPrefixError where they are not here."""
        if prefix is None:
            return []
        kept = self._kept.get(owner)
        if kept is None or kept.stream != prefix.stream or prefix.length > len(kept.sequence):
            raise UnknownPrefixError(
                f"stream {prefix.stream} is no longer held; send the whole prompt", code=ErrorCode.UNKNOWN_PREFIX
            )
        return kept.sequence[: prefix.length]

    def keep(self, stream: VerifierStream) -> None:
        """Keep an ended stream's tokens, in place of what was kept for its owner before."""
        self.forget(stream.owner)
        self._kept[stream.owner] = _Kept(stream.request.stream, stream.sequence)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def forget(self, owner: Owner) -> None:
        """Keep nothing for an owner."""
        self._kept.pop(owner, None)
