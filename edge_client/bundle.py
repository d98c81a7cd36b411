"""A draft bundle on disk, as the device sees it: manifest, tokenizer and chat template, all checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..protocol.errors import BundleCorruptError, InvalidParameterError
from ..protocol.manifest import Manifest
from .chat_template import ChatTemplate
from .drafter import Drafter, verify_model_files
from .onnx_runtime import DEFAULT_PROVIDERS
from .tokenizer import TOKENIZER_NAME, Tokenizer

__all__ = ["CHAT_TEMPLATE_NAME", "DraftBundle"]

CHAT_TEMPLATE_NAME = "chat_template.jinja"


@dataclass(frozen=True, slots=True)
class DraftBundle:
    """What a bundle holds beside its model; :meth:`load_drafter` loads that."""

    folder: Path
    manifest: Manifest
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    @classmethod
    def load(cls, folder: Path | str, *, verify: bool = True) -> DraftBundle:
        """Read and check a bundle; the model itself is hashed (if ``verify``) but not loaded.

        Raises:
            BundleNotFoundError: the folder, or a file its manifest names, is missing.
            BundleCorruptError: a file differs from its hash, cannot be read, or contradicts the manifest.
        """
        folder = Path(folder)
        manifest = Manifest.load(folder)
        if verify:
            verify_model_files(folder, manifest)
        tokenizer = Tokenizer.from_file(folder / TOKENIZER_NAME)
        _check_vocabulary(folder, manifest, tokenizer)
        return cls(folder, manifest, tokenizer, _read_template(folder, manifest))

    def load_drafter(self, *, threads: int | None = None, providers: Sequence[str] = DEFAULT_PROVIDERS) -> Drafter:
        """Load the model; its files were checked with the bundle. Errors are those of :meth:`Drafter.load`."""
        return Drafter.load(self.folder, threads=threads, providers=providers, verify=False)


def _check_vocabulary(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    vocabulary = manifest.vocabulary
    if tokenizer.fingerprint.hex() != vocabulary.fingerprint:
        raise BundleCorruptError(
            f"draft bundle {folder}: {TOKENIZER_NAME} is not the vocabulary its manifest names; export it again"
        )
    if not 0 < vocabulary.size <= min(vocabulary.logits_size, tokenizer.vocabulary_size):
        raise BundleCorruptError(
            f"draft bundle {folder}: vocabulary size {vocabulary.size} fits neither tokenizer nor logits; "
            "export it again"
        )


def _read_template(folder: Path, manifest: Manifest) -> ChatTemplate | None:
    path = folder / CHAT_TEMPLATE_NAME
    if not path.is_file():
        return None
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), **manifest.vocabulary.special_tokens)
    except (OSError, UnicodeError, InvalidParameterError) as error:
        raise BundleCorruptError(f"{path} cannot be used: {error}; export the draft again") from error
