"""What a gamma controller is asked, and what it answers.

The controller does no I/O and has no clock: it is told what happened and when, and decides at every step whether to
draft the next token of the path, and whether to send what has been drafted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Controller", "Decision", "Outlook", "Round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What lies beyond the committed prefix at a moment.

    Attributes:
        now: monotonic seconds.
        ahead: the confidence byte of each draft token beyond the committed prefix, in order.
        unsent: so many of them, the last ones, have not been sent.
        room: so many more may be drafted: the answer's end, a stop id and the limits allow no more.
    """

    now: float
    ahead: Sequence[int]
    unsent: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now: send, draft, both in this order, or wait for a commit.

    After sending without drafting the controller is asked again.

    Attributes:
        draft: draft the next token of the path.
        send: send every token not sent yet.
        continues: with ``send``: more of this path will follow before a commit is heard.
        rests: with neither: nothing will be drafted for now, and a verifier that waits for drafts should know.
    """

    draft: bool
    send: bool
    continues: bool = True
    rests: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One commit, as the device saw it.

    Attributes:
        now: when it arrived, monotonic seconds.
        tokens: how many tokens it committed.
        tested: each of the path's tokens that it settled: confidence byte, and whether it was right. Ends with the
            first that was wrong.
        depth: tokens of the path before the first one tested.
        kept: the path goes on.
        block: draft tokens verified by the step, as far as the device can know; None where it cannot.
        rtt: measured round trip in seconds, None without an echo.
        queued: seconds that the latest draft frame waited for the step.
        computed: seconds that the step took.
    """

    now: float
    tokens: int
    tested: Sequence[tuple[int, bool]]
    depth: int
    kept: bool
    block: int | None
    rtt: float | None
    queued: float
    computed: float


class Controller(ABC):
    """Decides how far ahead to draft, and when to send."""

    @abstractmethod
    def decide(self, outlook: Outlook) -> Decision:
        """What to do now; asked after each drafted token and each commit."""

    def drafted(self, seconds: float) -> None:  # noqa: B027 - only some care
        """A draft token took so long."""

    def committed(self, round_: Round) -> None:  # noqa: B027 - only some care
        """A commit arrived."""
