"""How fast each stream gets its tokens, noted while it runs."""

from __future__ import annotations

from dataclasses import dataclass

from ...protocol.messages import Policy
from ..engine.observer import CommitReport
from ..engine.stream import VerifierStream

__all__ = ["TokenTiming"]

_LEAST_TOKENS = 8
"""Tokens after the first commit, below which a mean says little."""


@dataclass(slots=True)
class TokenTiming:
    """One stream's commits: when the first and the last were, and the tokens after the first."""

    first: float | None = None
    last: float = 0.0
    tokens: int = 0

    def committed(self, report: CommitReport) -> None:
        """One more commit."""
        if self.first is None:
            self.first = report.at
        else:
            self.tokens += report.committed
        self.last = report.at

    def tpot(self, stream: VerifierStream) -> float | None:
        """Seconds per token; None where too few came, or where the client would rather wait than spend steps."""
        if self.first is None or self.tokens < _LEAST_TOKENS or stream.request.policy is Policy.COST:
            return None
        return (self.last - self.first) / self.tokens
