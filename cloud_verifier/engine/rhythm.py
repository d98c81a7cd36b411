"""When a client's drafts come, learned from when they came before."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

__all__ = ["Due", "Rhythm", "Typical"]

_WINDOW = 9
_COMMITS = 64
_LEAST_SLACK = 0.002
_SPREAD = 1.5  # of a median deviation, to compare with a standard one


class Typical:
    """The middle of the last few durations, and how far they lie from it.

    Medians: a minority of late ones changes nothing, and a lasting change is followed after a few. Durations that
    go both ways, as a jittery network's do, show in the spread.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_WINDOW)
        self.value: float | None = None
        self.spread = 0.0

    def add(self, seconds: float) -> None:
        """Learn from one duration."""
        self._recent.append(seconds)
        self.value = median(self._recent)
        if len(self._recent) < 3:
            self.spread = self.value / 2
        else:
            self.spread = _SPREAD * median(abs(each - self.value) for each in self._recent)


@dataclass(frozen=True, slots=True)
class Due:
    """When a draft token is expected, give or take ``spread``, and how many drafted ``tokens`` must be right for it
    to be of use: itself, and those before it whose fate is open.
    """

    at: float
    spread: float
    tokens: int

    @property
    def slack(self) -> float:
        """How much later than expected it may well be."""
        return _LEAST_SLACK + 2 * self.spread

    @property
    def until(self) -> float:
        """After this it is overdue."""
        return self.at + self.slack


class Rhythm:
    """Two durations tell when a draft token is due, both seen from here, network included.

    The **reply gap** runs from a commit to the first token of the path that a client starts because of it: the path's
    start says which commit that was. The **token gap** is what each further token of a path takes.
    """

    def __init__(self) -> None:
        self.reply = Typical()
        self.token = Typical()
        self._commits: deque[tuple[int, float]] = deque(maxlen=_COMMITS)
        self._last_frame = 0.0

    def committed(self, length: int, *, at: float) -> None:
        """A commit has made the sequence ``length`` tokens long."""
        self._commits.append((length, at))

    def path_began(self, start: int, tokens: int, *, at: float) -> None:
        """The first frame of a path has come, with so many tokens."""
        for length, committed_at in self._commits:
            if length == start:
                self.reply.add(max(0.0, at - committed_at - (tokens - 1) * (self.token.value or 0.0)))
        self._last_frame = at

    def path_grew(self, tokens: int, *, at: float, announced: bool) -> None:
        """A further frame of a path has come; ``announced``: the one before said that the client goes on drafting."""
        if announced:
            self.token.add((at - self._last_frame) / tokens)
        self._last_frame = at

    def next_on_path(self, tokens: int) -> Due | None:
        """When the client has added so many ``tokens`` more to a path that goes on; None while unknown."""
        if self.token.value is None:
            return None
        return Due(self._last_frame + tokens * self.token.value, self.token.spread, tokens)

    def next_in_answer(self, lacking: int, length: int) -> Due | None:
        """When a new path reaches beyond the ``length`` committed tokens; None while unknown.

        Args:
            lacking: the first committed position that the client's path did not hold, or held otherwise: it starts
                anew after the commit that tells it so.
        """
        answered = next((commit for commit in self._commits if commit[0] > lacking), None)
        if answered is None or self.reply.value is None:
            return None
        more = length - answered[0]
        at = answered[1] + self.reply.value + more * (self.token.value or 0.0)
        return Due(at, self.reply.spread, more + 1)
