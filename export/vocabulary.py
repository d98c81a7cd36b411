"""What the manifest says about token ids: fingerprint, size, special ids and the chat template."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..protocol.errors import UnsupportedModelError
from ..protocol.fingerprint import vocabulary_fingerprint
from ..protocol.manifest import VocabularySpec

__all__ = ["TokenizerFiles", "read_tokenizer", "vocabulary_spec"]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as a bundle keeps it: the text of ``tokenizer.json`` and the chat template, if there is one."""

    tokenizer_json: str
    chat_template: str | None


def read_tokenizer(tokenizer: Any) -> TokenizerFiles:
    """Take the parts that a device needs from a transformers tokenizer.

    Raises:
        UnsupportedModelError: the tokenizer has no fast form, so nothing but transformers could run it.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UnsupportedModelError(
            f"the tokenizer {type(tokenizer).__name__} cannot be written as tokenizer.json, which devices need; "
            "use a model with a fast tokenizer"
        )
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return TokenizerFiles(backend.to_str(), template)


def vocabulary_spec(tokenizer: Any, *, logits_size: int, eos_ids: Iterable[int]) -> VocabularySpec:
    """Describe the vocabulary of a transformers tokenizer whose model has logits of ``logits_size`` ids."""
    backend = tokenizer.backend_tokenizer
    ids = backend.get_vocab(with_added_tokens=True)
    special = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    size = min(1 + max(ids.values()), logits_size)
    return VocabularySpec(
        fingerprint=vocabulary_fingerprint(ids, special).hex(),
        size=size,
        logits_size=logits_size,
        eos_ids=sorted(token for token in eos_ids if 0 <= token < size),
        bos_id=tokenizer.bos_token_id,
        pad_id=tokenizer.pad_token_id,
        special_tokens={name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)},
    )
