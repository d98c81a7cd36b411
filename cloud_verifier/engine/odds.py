"""The chances that a stream's draft tokens are right, learned from those that were tested."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.acceptance import Proposal
from ...protocol.calibration import Calibration
from ...protocol.clock import confidence_byte

__all__ = ["Odds", "confidence_of"]

_FIRST_HIT = 0.7
_HIT_WEIGHT = 6.0
_MEMORY = 0.97


class Odds:
    """What one client's drafts are worth on one stream."""

    def __init__(self) -> None:
        self._calibration = Calibration()
        self._right = _FIRST_HIT * _HIT_WEIGHT
        self._tested = _HIT_WEIGHT

    def record(self, confidence: int, right: bool) -> None:
        """Learn from a token that was tested: committed as proposed, or the first of its path that was not."""
        self._calibration.record(confidence, right)
        self._right = self._right * _MEMORY + right
        self._tested = self._tested * _MEMORY + 1.0

    @property
    def hit(self) -> float:
        """The chance that a token not seen yet is right, given that all before it are."""
        return self._right / self._tested

    def survival(self, confidences: Iterable[int]) -> list[float]:
        """For each token of a path, the chance that the path is right up to and including it."""
        return self._calibration.survival(confidences)


def confidence_of(proposal: Proposal) -> int:
    """The confidence byte of a proposal that came with its distribution instead."""
    return 0 if proposal.q is None else confidence_byte(proposal.q.probability(proposal.token))
