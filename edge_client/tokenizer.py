"""The tokenizer of a draft bundle or of a verifier's target, over the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from ..protocol.errors import BundleCorruptError, BundleNotFoundError, InvalidParameterError, MissingDependencyError
from ..protocol.fingerprint import vocabulary_fingerprint

try:
    import tokenizers
except ImportError as error:
    raise MissingDependencyError("tokenizers is not installed; install draftwire[edge]") from error

__all__ = ["TOKENIZER_NAME", "Tokenizer"]

TOKENIZER_NAME = "tokenizer.json"
MAX_ID = 2**32 - 1


class Tokenizer:
    """Text to token ids and back. Truncation and padding that the file may ask for are off: neither is text."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        """Take over a tokenizer of the ``tokenizers`` library; users call :meth:`from_file` or :meth:`from_json`."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(token for token, entry in added.items() if entry.special)
        self._special_texts = frozenset(entry.content for entry in added.values() if entry.special)

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Read ``tokenizer.json``, or the one in a folder.

        Raises:
            BundleNotFoundError: it is missing.
            BundleCorruptError: it is no tokenizer.
        """
        file = Path(path) / TOKENIZER_NAME if Path(path).is_dir() else Path(path)
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            raise BundleNotFoundError(f"no tokenizer at {file}; copy the whole bundle or export it again") from None
        except (OSError, UnicodeError) as error:
            raise BundleCorruptError(f"{file} cannot be read: {error}; export the draft again") from error
        try:
            return cls.from_json(text)
        except InvalidParameterError as error:
            raise BundleCorruptError(f"{file} is no tokenizer: {error}; export the draft again") from error

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Build from the text of a ``tokenizer.json``.

        Raises:
            InvalidParameterError: it is no tokenizer.
        """
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise InvalidParameterError("tokenizer", f"is not a tokenizer.json ({str(error)[:200]})") from error
        return cls(backend)

    @cached_property
    def vocabulary_size(self) -> int:
        """One more than the highest token id."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @cached_property
    def fingerprint(self) -> bytes:
        """What token ids mean, as 16 bytes; equal on both ends or there is no drafting."""
        return vocabulary_fingerprint(self._backend.get_vocab(with_added_tokens=True), self._special_texts)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with the model's own BOS and the like if ``add_special_tokens``.

        Raises:
            InvalidParameterError: ``text`` is no text.
        """
        if not isinstance(text, str):
            raise InvalidParameterError("text", f"must be a string, not {type(text).__name__}")
        try:
            text.encode()
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}, a lone surrogate"
            problem = f"has half a character ({half}) at position {error.start}; give whole characters"
            raise InvalidParameterError("text", problem) from None
        except Exception as error:  # whatever else the library has no token for
            raise InvalidParameterError("text", f"cannot be encoded ({str(error)[:200]})") from error
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; ids without a token give none.

        Raises:
            InvalidParameterError: an id is negative or no whole number.
        """
        try:
            text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (TypeError, OverflowError, ValueError) as error:
            raise InvalidParameterError("token_ids", f"must be whole numbers from 0 to {MAX_ID}") from error
        return text

    def token_to_id(self, token: str) -> int | None:
        """Id of a token's exact text, or None."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def id_to_token(self, token: int) -> str | None:
        """Exact text of an id, or None."""
        found: str | None = self._backend.id_to_token(token) if 0 <= token <= MAX_ID else None
        return found
