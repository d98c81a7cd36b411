"""The draft bundle's manifest: what a device must know to run a draft, and the hashes that prove it is whole.

A bundle is a folder: ``model.onnx`` (and its external data), ``tokenizer.json``, ``chat_template.jinja`` where the
model has one, and ``manifest.json``, which this module reads and writes.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from .errors import BundleCorruptError, BundleNotFoundError

__all__ = [
    "MANIFEST_NAME",
    "BundleFile",
    "GraphSpec",
    "KVSpec",
    "Manifest",
    "ParityReport",
    "QuantizationSpec",
    "SourceSpec",
    "VocabularySpec",
    "file_sha256",
]

MANIFEST_NAME = "manifest.json"
FORMAT = "draftwire-bundle"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """Where the draft came from: model id or file name, its hash where it was one file, and library versions."""

    model: str
    sha256: str | None = None
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularySpec:
    """``size`` token ids mean something; the graph's logits may be wider (``logits_size``), padding is never drawn.

    ``special_tokens`` are the texts that chat templates know by name, such as ``bos_token``.
    """

    fingerprint: str
    size: int
    logits_size: int
    eos_ids: list[int]
    bos_id: int | None = None
    pad_id: int | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSpec:
    """The graph's KV cache. ``layout`` decides what rollback is.

    ``shared_buffer``: past and present are one buffer ``[batch, heads, capacity, head_size]`` written in place, and
    rollback is a number. ``concatenated``: present is past plus the new tokens, and rollback is a slice.
    Names carry ``{layer}``.
    """

    layout: Literal["shared_buffer", "concatenated"]
    layers: int
    heads: int
    head_size: int
    dtype: Literal["float32", "float16"] = "float32"
    past_key: str = "past_key_values.{layer}.key"
    past_value: str = "past_key_values.{layer}.value"
    present_key: str = "present.{layer}.key"
    present_value: str = "present.{layer}.value"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSpec:
    """The ONNX graph: its file, the non-KV inputs it takes, and the name of its logits."""

    file: str = "model.onnx"
    inputs: list[str] = field(default_factory=lambda: ["input_ids", "attention_mask"])
    logits: str = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec:
    """How weights are stored. ``notes`` says in plain words what is stored twice, and why."""

    scheme: Literal["int4", "int8", "none"]
    block_size: int | None = None
    shared_embeddings: bool = False
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityReport:
    """What the check against the torch model found.

    ``top1_agreement`` is the share of positions of a fixed prompt set at which draft and torch model rank the same
    token first, ``max_difference`` the largest absolute logit difference, ``ms_per_token`` the median time of one
    decoding step on ``threads`` threads, ``size_ratio`` bundle bytes over the torch weights' bytes in fp32.
    """

    top1_agreement: float
    max_difference: float
    ms_per_token: float
    threads: int
    model_bytes: int
    size_ratio: float
    positions: int
    threshold: float
    recommendation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFile:
    """Size in bytes and SHA-256 of one file of the bundle."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything ``manifest.json`` says."""

    name: str
    architecture: str
    builder: Literal["fused", "optimum"]
    context_length: int
    source: SourceSpec
    vocabulary: VocabularySpec
    kv: KVSpec
    graph: GraphSpec
    quantization: QuantizationSpec
    parity: ParityReport | None = None
    files: dict[str, BundleFile] = field(default_factory=dict)
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    @classmethod
    def load(cls, folder: Path | str) -> Manifest:
        """Read ``folder/manifest.json``.

        Raises:
            BundleNotFoundError: no such folder or no manifest in it.
            BundleCorruptError: the manifest is no manifest of a version known here.
        """
        path = Path(folder) / MANIFEST_NAME
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            missing = f"{MANIFEST_NAME} is missing" if Path(folder).is_dir() else "there is no such folder"
            raise BundleNotFoundError(
                f"no draft bundle at {folder}: {missing}; make one with draftwire-export draft"
            ) from None
        except (OSError, ValueError) as error:
            raise BundleCorruptError(f"{path} cannot be read: {error}; export the draft again") from error
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise BundleCorruptError(f"{path} is not a draft bundle manifest; export the draft again")
        if raw.get("format_version") != FORMAT_VERSION:
            raise BundleCorruptError(
                f"{path} has format version {raw.get('format_version')}, this release reads {FORMAT_VERSION}; "
                "export the draft again"
            )
        try:
            return _parse(cls, raw)
        except (KeyError, TypeError, ValueError) as error:
            raise BundleCorruptError(f"{path}: {error}; export the draft again") from error

    def save(self, folder: Path | str) -> None:
        """Write ``folder/manifest.json`` whole or not at all."""
        path = Path(folder) / MANIFEST_NAME
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)

    def verify(self, folder: Path | str) -> None:
        """Check every file's size and SHA-256.

        Raises:
            BundleNotFoundError: a file is missing.
            BundleCorruptError: a file differs.
        """
        for name, expected in self.files.items():
            path = Path(folder) / name
            if not path.is_file():
                raise BundleNotFoundError(f"draft bundle {folder} lacks {name}; copy the whole folder or export again")
            if path.stat().st_size != expected.size or file_sha256(path) != expected.sha256:
                raise BundleCorruptError(f"draft bundle {folder}: {name} differs from its manifest; export it again")


def file_sha256(path: Path) -> str:
    """Hex SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


T = TypeVar("T")


def _parse(kind: type[T], raw: dict[str, Any], where: str = "manifest") -> T:
    """Build a dataclass from JSON, checking names and types, so that a bad manifest is told by field."""
    hints = typing.get_type_hints(kind)
    names = {item.name for item in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(raw) - names)
    if unknown:
        raise ValueError(f"{where} has unknown fields {', '.join(unknown)}")
    return kind(**{name: _parse_value(hints[name], value, f"{where}.{name}") for name, value in raw.items()})


def _parse_value(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ValueError(f"{where} must be an object")
        return _parse(hint, value, where)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _parse_value(next(kind for kind in arguments if kind is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} must be one of {', '.join(map(str, arguments))}")
        return value
    if origin is list and isinstance(value, list):
        return [_parse_value(arguments[0], item, where) for item in value]
    if origin is dict and isinstance(value, dict):
        return {str(key): _parse_value(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(hint, type) or not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ValueError(f"{where} has the wrong type")
    return value
