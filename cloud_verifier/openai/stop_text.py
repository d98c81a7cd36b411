"""Stop strings, found in a text that grows: before its end nothing is given that may turn out to begin one."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["StopText"]


class StopText:
    """Lets text through up to the stop string that is complete first.

    What comes out, joined, depends on the text alone and not on how it was cut. Of two stop strings that end at the
    same place the longer one counts.

    Args:
        stops: none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.found = False
        """Whether the text has come to a stop string; nothing comes out after it."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> str:
        """Take more of the text; returns what is certain to be before any stop string."""
        if self.found or not text:
            return ""
        text = self._held + text
        cut = self._find(text)
        if cut is not None:
            self.found = True
            self._held = ""
            return text[:cut]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """The text has ended: what was held back, unless a stop string was found."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> int | None:
        """Where the stop string begins that is complete first."""
        starts = [(text.find(stop), stop) for stop in self._stops]
        found = [(start + len(stop), start) for start, stop in starts if start >= 0]
        return min(found)[1] if found else None


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text may begin the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
