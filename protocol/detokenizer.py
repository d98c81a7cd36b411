"""Text while it is generated: token ids in, whole characters out.

The text of a stream is the text of prompt and generated tokens together, less what it shares with the prompt's text
at the front. So a SentencePiece word keeps the space that divides it from the prompt, and a character that the
prompt began is given whole. With an empty prompt that is simply the decoding of the generated ids.

Both ends make text, each with a tokenizer of its own kind, and it must be the same text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

__all__ = ["IncrementalDetokenizer", "TokenDecoder"]

REPLACEMENT = "\ufffd"
# Tokens of context kept before the text still to come. A character has at most four tokens, one a byte.
CONTEXT_TOKENS = 8
# The window is decoded at each push, and shortened when it has grown to this.
WINDOW_TOKENS = 32
# SentencePiece's byte tokens are decoded by the run: one bad byte makes the whole run unreadable. So a run is held
# back until it ends, but no longer than this, lest text in a script the vocabulary lacks stand still.
BYTE_RUN_TOKENS = 64
BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class TokenDecoder(Protocol):
    """What is asked of a tokenizer. ``special_ids`` are those of special tokens, such as BOS."""

    special_ids: frozenset[int]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids without a token give none."""
        ...

    def token_to_id(self, token: str) -> int | None:
        """Id of a token's exact text, or None."""
        ...

    def id_to_token(self, token: int) -> str | None:
        """Exact text of an id, or None."""
        ...


class IncrementalDetokenizer:
    """Turns the ids of one stream into text deltas.

    Joined, the deltas are what decoding all ids at once gives, however the ids were cut into pushes. Characters
    still incomplete are held back until they are whole, or until :meth:`finish`. Each push costs the decoding of
    some tens of tokens at most, however long the stream. (One exception to equality: in an unreadable run of more
    than 64 byte tokens, characters that were readable by themselves stay readable.)
    """

    def __init__(
        self, tokenizer: TokenDecoder, prompt_ids: Sequence[int] = (), *, skip_special_tokens: bool = True
    ) -> None:
        """Start after ``prompt_ids``; special tokens give no text if ``skip_special_tokens``."""
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._byte_fallback = _has_byte_fallback(tokenizer)
        self._byte_ids: dict[int, bool] = {}
        self._window = self._prompt_tail(prompt_ids)
        self._run = 0  # byte tokens at the end of the window
        while self._run < len(self._window) and self._is_byte(self._window[-1 - self._run]):
            self._run += 1
        # The prompt's text while it is unsettled whether its last character is whole; then None.
        self._prompt_text: str | None = self._decode(self._window)
        self._given = 0  # characters of the window's text that were given, or are the prompt's

    def push(self, ids: Sequence[int]) -> str:
        """Take generated ids; returns the text that they completed, maybe none."""
        deltas = []
        for token in ids:
            if not self._has_text(token):
                continue
            self._window.append(token)
            self._run = self._run + 1 if self._is_byte(token) else 0
            # A push may bring a thousand ids; decoding by the piece keeps the window short.
            if len(self._window) >= WINDOW_TOKENS and self._run < BYTE_RUN_TOKENS:
                deltas.append(self._advance())
            elif self._run >= BYTE_RUN_TOKENS:
                deltas.append(self._break_run())
        deltas.append(self._advance())
        return "".join(deltas)

    def finish(self) -> str:
        """The rest of the text, with replacement characters where it ends inside a character."""
        text = self._decode(self._window)
        return self._give(text)

    def _advance(self) -> str:
        """Give what is whole, and shorten a long window."""
        closed = self._window[: len(self._window) - self._run]
        text = self._decode(closed)
        # The last replacement character may be a character still incomplete.
        stable = text.removesuffix(REPLACEMENT)
        delta = self._give(stable)
        if len(closed) >= WINDOW_TOKENS and self._prompt_text is None:
            self._shorten(closed, text)
        return delta

    def _give(self, stable: str) -> str:
        if self._prompt_text is not None:
            if len(stable) < len(self._prompt_text) and self._prompt_text.startswith(stable):
                return ""
            self._given = _shared_length(self._prompt_text, stable)
            self._prompt_text = None
        delta = stable[self._given :]
        self._given = max(self._given, len(stable))
        return delta

    def _shorten(self, closed: list[int], text: str) -> None:
        """Drop tokens from the window's front, if what is left decodes to the same end."""
        start = self._run_start(closed, len(closed) - CONTEXT_TOKENS)
        tail = self._decode(closed[start:])
        pending = len(text) - self._given
        # The front of a shorter window may differ, as decoders trim a text's start and a character may be cut there;
        # so count from the end, and keep a character more than is still to be given.
        checked = pending + 1
        if start > 0 and len(tail) > checked and tail[-checked:] == text[-checked:]:
            del self._window[:start]
            self._given = len(tail) - pending

    def _break_run(self) -> str:
        """Give the whole characters of a byte run that is too long to wait for, and begin a new run after them."""
        whole = len(self._window)
        while whole > len(self._window) - 4 and self._decode(self._window[:whole]).endswith(REPLACEMENT):
            whole -= 1
        stable = self._decode(self._window[:whole])
        delta = self._give(stable)
        before = self._window[: len(self._window) - self._run][-CONTEXT_TOKENS:]
        self._window, self._run = before + self._window[whole:], len(self._window) - whole
        self._given = len(self._decode(before))
        return delta

    def _prompt_tail(self, prompt_ids: Sequence[int]) -> list[int]:
        tail: list[int] = []
        for token in reversed(prompt_ids):
            if len(tail) >= CONTEXT_TOKENS and not self._is_byte(tail[-1]):
                break
            if self._has_text(token):
                tail.append(token)
        return tail[::-1]

    def _run_start(self, ids: Sequence[int], start: int) -> int:
        """The nearest index at or before ``start`` that is not inside a run of byte tokens."""
        while start > 0 and self._is_byte(ids[start]):
            start -= 1
        return max(start, 0)

    def _has_text(self, token: int) -> bool:
        return token not in self._skipped and self._tokenizer.id_to_token(token) is not None

    def _is_byte(self, token: int) -> bool:
        if not self._byte_fallback:
            return False
        if token not in self._byte_ids:
            self._byte_ids[token] = BYTE_TOKEN.fullmatch(self._tokenizer.id_to_token(token) or "") is not None
        return self._byte_ids[token]

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)


def _shared_length(first: str, second: str) -> int:
    """Characters the two texts share at the front."""
    length = min(len(first), len(second))
    return next((index for index in range(length) if first[index] != second[index]), length)


def _has_byte_fallback(tokenizer: TokenDecoder) -> bool:
    """Whether the decoder joins byte tokens such as ``<0x41>``, rather than taking them as text."""
    probe = tokenizer.token_to_id("<0x41>")
    return probe is not None and tokenizer.decode([probe], skip_special_tokens=False) == "A"
