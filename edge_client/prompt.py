"""Prompts: text, chat messages or token ids, turned into the target's token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ..protocol.errors import InvalidParameterError
from .chat_template import ChatTemplate, encode_messages
from .tokenizer import Tokenizer

__all__ = ["Prompt", "Vocabulary"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""Text, token ids, or chat messages as mappings with ``role`` and ``content``."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What turns text into token ids and back: a bundle's, or the one the verifier hands out."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def encode(self, prompt: Prompt, *, size: int) -> list[int]:
        """Token ids of a prompt.

        Text gets the tokenizer's own special tokens, such as BOS. Messages go through the chat template, which
        writes its own. Ids are taken as they are.

        Args:
            size: the target's vocabulary size; ids must be below it.

        Raises:
            InvalidParameterError: the prompt is none of the three, or empty, or has ids out of range.
        """
        if isinstance(prompt, str) and prompt:
            ids = self.tokenizer.encode(prompt)
        elif isinstance(prompt, Sequence) and prompt and isinstance(prompt[0], Mapping):
            ids = encode_messages(prompt, template=self.chat_template, tokenizer=self.tokenizer)  # type: ignore[arg-type]
        elif isinstance(prompt, str):
            ids = []
        elif isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray, memoryview)):
            ids = [_token(token, size) for token in prompt]
        else:
            raise InvalidParameterError("prompt", f"must be text, messages or token ids, not {type(prompt).__name__}")
        if not ids:
            raise InvalidParameterError("prompt", "is empty; give at least one token")
        return ids


def _token(token: object, size: int) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise InvalidParameterError("prompt", f"must be text, messages or token ids; {token!r} is no token id")
    if not 0 <= token < size:
        raise InvalidParameterError("prompt", f"token id {token} is out of range 0 to {size - 1}")
    return token
