"""How many proposals of each stream a step verifies: what is left of its budget goes where it gains most."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .stream import VerifierStream

__all__ = ["choose_drafts"]


@dataclass(slots=True)
class _Candidate:
    """A stream's proposals, by what each would add; ``taken`` of them so far."""

    stream: VerifierStream
    gains: list[float]
    taken: int = 0

    @property
    def forced(self) -> int:
        """By rejection the first is tested in any case: to draw in its place because of what it is would be to choose.

        A bonus that is withheld is a token less, so that there a proposal gains what the one before it lets through.
        """
        return 1 if self.stream.by_rejection and self.gains else 0

    @property
    def next_gain(self) -> float:
        return self.gains[self.taken]


def choose_drafts(
    streams: Sequence[VerifierStream],
    *,
    room: int,
    most: int,
    tokens: int,
    seconds: Callable[[int], float | None],
) -> list[int]:
    """How many proposals to verify of each stream.

    Tokens are taken in the order of their chance, over all streams, while one more raises the rate of the step:
    ``chance / expected > seconds added / seconds so far``, with ``expected`` the tokens that the step is to commit so
    far. No chance is larger than that of the token before it, so that the first that is not worth it ends the choice.
    What is left out stays on its path for the next step.

    Args:
        streams: that get a token in this step.
        room: proposals that the step's budget leaves.
        most: proposals of one stream.
        tokens: in the step without proposals, prompts included.
        seconds: of a step over so many tokens; None while nothing is known, and then all that fits is taken.
    """
    candidates = [_Candidate(stream, _gains(stream, most)) for stream in streams]
    expected = float(len(streams))
    for candidate in candidates:
        candidate.taken = min(candidate.forced, max(room, 0))
        room -= candidate.taken
        tokens += candidate.taken
    heap = [(-each.next_gain, index) for index, each in enumerate(candidates) if each.taken < len(each.gains)]
    heapq.heapify(heap)
    while heap and room > 0:
        gain, candidate = -heap[0][0], candidates[heap[0][1]]
        step, longer = seconds(tokens), seconds(tokens + 1)
        if step is not None and longer is not None and gain * step <= expected * (longer - step):
            break
        candidate.taken += 1
        tokens, room, expected = tokens + 1, room - 1, expected + gain
        if candidate.taken < len(candidate.gains):
            heapq.heapreplace(heap, (-candidate.next_gain, heap[0][1]))
        else:
            heapq.heappop(heap)
    return [candidate.taken for candidate in candidates]


def _gains(stream: VerifierStream, most: int) -> list[float]:
    chances = stream.survival()[: max(0, min(most, stream.remaining - 1))]
    return [0.0, *chances][: len(chances)] if stream.by_rejection else chances
