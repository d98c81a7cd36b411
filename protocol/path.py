"""A path: one guess of the future, as the client makes it and as the verifier holds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .acceptance import Proposal

__all__ = ["Path"]


@dataclass(slots=True)
class Path:
    """Proposals for the positions from ``start`` on, without gaps.

    A path lives as long as every committed token within it is the one it proposed; it then dies for good, and
    whatever is added to it later is dead too. It does not know the sequence: both ends tell it what was committed.
    """

    id: int
    start: int
    proposals: list[Proposal] = field(default_factory=list)
    alive: bool = True

    @property
    def end(self) -> int:
        """The first position that the path says nothing about."""
        return self.start + len(self.proposals)

    def settle(self, position: int, tokens: Sequence[int]) -> bool:
        """Compare with ``tokens``, committed from ``position`` on; a disagreement ends the path's life."""
        for offset in range(max(position, self.start), min(position + len(tokens), self.end)):
            if self.proposals[offset - self.start].token != tokens[offset - position]:
                self.alive = False
                break
        return self.alive

    def beyond(self, position: int) -> list[Proposal]:
        """Proposals from ``position`` on; none when the path is dead or starts later."""
        if not self.alive or position < self.start:
            return []
        return self.proposals[position - self.start :]
