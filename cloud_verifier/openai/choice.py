"""One choice of an answer: tokens come in, text goes out, up to its end or to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from ...protocol.detokenizer import IncrementalDetokenizer, TokenDecoder
from ...protocol.messages import EndReason
from .stop_text import StopText

__all__ = ["Choice", "FinishReason"]

FinishReason: TypeAlias = Literal["stop", "length"]


class Choice:
    """The text of one stream.

    Text, count of tokens and end belong together: nothing is counted that comes after a stop string.

    Args:
        index: in the answer.
        decoder: of token ids.
        prompt_ids: that the text goes on from.
        stops: texts that end it.
    """

    def __init__(
        self, *, index: int, decoder: TokenDecoder, prompt_ids: Sequence[int], stops: Sequence[str] = ()
    ) -> None:
        self.index = index
        self.tokens = 0
        """Of the answer so far; the one that completed a stop string is the last that counts."""
        self.finish_reason: FinishReason | None = None
        self._detokenizer = IncrementalDetokenizer(decoder, prompt_ids)
        self._stop_text = StopText(stops)

    def take(self, token: int) -> str:
        """The text that a token adds, maybe none."""
        if self.finish_reason is not None:
            return ""
        self.tokens += 1
        text = self._stop_text.push(self._detokenizer.push([token]))
        if self._stop_text.found:
            self.finish_reason = "stop"
        return text

    def end(self, reason: EndReason) -> str:
        """The stream has ended; returns the rest of the text."""
        if self.finish_reason is not None:
            return ""
        text = self._stop_text.push(self._detokenizer.finish())
        stopped = reason is EndReason.STOP or self._stop_text.found
        self.finish_reason = "stop" if stopped else "length"
        return text + self._stop_text.finish()
