"""Text to the target's token ids and back, as the device does it: one template, one BOS, the same ids at both ends.

Templates are rendered by transformers, in its sandbox.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenizers

from ...protocol.errors import InvalidParameterError
from ..targets.target import Target
from .fields import check_text

__all__ = ["Vocabulary"]


class Vocabulary:
    """A target's tokenizer and chat template. May be used from several threads.

    Truncation and padding that the tokenizer's file may ask for are off: neither is text.
    """

    def __init__(self, target: Target) -> None:
        backend = tokenizers.Tokenizer.from_str(target.tokenizer_json)
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._size = target.info.vocabulary_size
        self._variables = dict(target.special_tokens)
        self._template = target.chat_template
        self._render = _renderer() if target.chat_template is not None else None
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)

    def encode(self, text: str, *, field: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text, with the model's own BOS and the like if ``add_special_tokens``.

        Raises:
            InvalidParameterError: it has none, or is no whole text; naming ``field``.
        """
        check_text(text, field=field)
        try:
            # The library lets other threads run while it encodes a batch, and not while it encodes one text.
            (encoding,) = self._backend.encode_batch([text], add_special_tokens=add_special_tokens)
        except Exception as error:  # whatever the library has no token for
            raise InvalidParameterError(field, f"cannot be encoded ({_one_line(error)})") from error
        return self._some(tuple(encoding.ids), field)

    def check(self, ids: Sequence[int], *, field: str) -> tuple[int, ...]:
        """Token ids that were given as such; InvalidParameterError where one is none of the target's."""
        if ids and not 0 <= min(ids) <= max(ids) < self._size:
            raise InvalidParameterError(field, f"has a token id out of range 0 to {self._size - 1}")
        return self._some(tuple(ids), field)

    def encode_messages(self, messages: Sequence[Mapping[str, str]], *, field: str) -> tuple[int, ...]:
        """Token ids of a conversation, up to where the model's answer begins.

        The template writes BOS where the model wants one, so none is added to it.

        Raises:
            InvalidParameterError: there is no template, or it refused the messages.
        """
        if self._render is None:
            raise InvalidParameterError(field, "this model has no chat template; use /v1/completions")
        try:
            rendered = self._render(
                conversations=[[dict(message) for message in messages]],
                chat_template=self._template,
                add_generation_prompt=True,
                **self._variables,
            )
        except Exception as error:  # a template can fail in any way Python can
            raise InvalidParameterError(field, f"the chat template refused them: {_one_line(error)}") from error
        return self.encode(rendered[0][0], field=field, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See :meth:`TokenDecoder.decode <draftwire.protocol.detokenizer.TokenDecoder.decode>`."""
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of a token's exact text, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def id_to_token(self, token: int) -> str | None:
        """Exact text of an id, or None."""
        found: str | None = self._backend.id_to_token(token)
        return found

    def _some(self, ids: tuple[int, ...], field: str) -> tuple[int, ...]:
        if not ids:
            raise InvalidParameterError(field, "is empty; give at least one token")
        return ids


def _renderer() -> Callable[..., Any]:
    """Transformers takes seconds to import, which only targets with a template need."""
    from transformers.utils.chat_template_utils import render_jinja_template

    return render_jinja_template


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
