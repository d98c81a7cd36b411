"""What an operator wants done with drafts: on, off, shadow, or on for a share of the streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError
from ..engine.speculation import Speculation

__all__ = ["OFF", "ON", "SHADOW", "Rule", "draw_of", "strictest"]

_STRICTNESS = {Speculation.ON: 0, Speculation.SHADOW: 1, Speculation.OFF: 2}


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of drafts.

    Attributes:
        speculation: of the streams it is for.
        share: of all streams that it is for, above 0 and at most 1; it is off for the rest (a canary).
    """

    speculation: Speculation = Speculation.ON
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise InvalidParameterError("canary", f"must be a share above 0 and at most 1, not {self.share!r}")

    def decide(self, draw: float) -> Speculation:
        """For the stream that drew ``draw``, see :func:`draw_of`."""
        return self.speculation if draw < self.share else Speculation.OFF


ON, OFF, SHADOW = Rule(Speculation.ON), Rule(Speculation.OFF), Rule(Speculation.SHADOW)


def draw_of(request_id: str, stream: int, seed: int, *, purpose: str = "canary") -> float:
    """A number in [0, 1) that this stream always draws, on every replica, and another one for each purpose.

    The same streams are in every canary of a share, and in every larger one.
    """
    text = f"{purpose}\0{request_id}\0{stream}\0{seed}".encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.sha256(text).digest()[:7]) / (1 << 56)


def strictest(decisions: Iterable[Speculation]) -> Speculation:
    """Off before shadow before on; on where there is none."""
    return max(decisions, key=_STRICTNESS.__getitem__, default=Speculation.ON)
