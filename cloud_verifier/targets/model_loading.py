"""From a hub id, folder or GGUF file to a transformers model and tokenizer; every failure becomes one clear line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils.hub import cached_file

from ...protocol.errors import InvalidParameterError, MissingDependencyError, ModelNotFoundError, UnsupportedModelError
from ...protocol.fingerprint import vocabulary_fingerprint
from .ragged_attention import ATTENTION_NAME

__all__ = ["LoadedModel", "LoadedTokenizer", "load_model", "load_tokenizer", "parse_device", "parse_dtype"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_ATTENDING = {"full_attention", "sliding_attention"}

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """What clients and the handshake need of a tokenizer."""

    json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    size: int
    """1 + the highest token id."""
    eos_ids: tuple[int, ...]
    fingerprint: bytes


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode on its device, its attention served by the ragged implementation."""

    model: Any
    name: str
    max_context: int
    eos_ids: tuple[int, ...]


def parse_device(device: str) -> torch.device:
    """A torch device that exists here, or InvalidParameterError."""
    try:
        parsed = torch.device(device)
        torch.empty(0, device=parsed)
    except (RuntimeError, AssertionError) as error:  # a torch without CUDA asserts
        raise InvalidParameterError("device", f"{device!r} cannot be used here: {_first_line(error)}") from error
    return parsed


def parse_dtype(dtype: str) -> torch.dtype | str:
    """A torch dtype, or ``"auto"``, which transformers takes as the checkpoint's own."""
    if dtype == "auto":
        return dtype
    if dtype not in _DTYPES:
        raise InvalidParameterError("dtype", f"{dtype!r} is not one of auto, {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def load_model(
    model: str, *, device: torch.device, dtype: torch.dtype | str, trust_remote_code: bool = False
) -> LoadedModel:
    """Load a causal language model, refusing by its configuration what could not be exact.

    Args:
        model: hub id, folder, or path of a GGUF file (whose weights become float32 with dtype ``"auto"``).
        device: where to.
        dtype: of the weights.
        trust_remote_code: run code that comes with the model.

    Raises:
        ModelNotFoundError: there is no such model, it cannot be read, or its weights are pickled.
        UnsupportedModelError: of an architecture that cannot be served exactly.
        MissingDependencyError: a package that reading this kind of file takes is not installed.
    """
    source, options = _source(model)
    options["trust_remote_code"] = trust_remote_code
    config = _door(model, lambda: AutoConfig.from_pretrained(source, **options))
    _refuse_by_config(model, config)
    if options.get("gguf_file") and dtype == "auto":
        dtype = torch.float32
    options |= {"dtype": dtype, "attn_implementation": ATTENTION_NAME}
    if not options.get("gguf_file"):
        options["use_safetensors"] = True  # the other format is pickle, which can run code as it is read
    loaded: Any = _door(model, lambda: AutoModelForCausalLM.from_pretrained(source, **options))
    if getattr(loaded, "_is_stateful", False):
        raise UnsupportedModelError(
            f"{model}: {type(loaded).__name__} keeps recurrent state, which cannot be rolled back; use a model "
            "whose layers all attend"
        )
    loaded = _door(model, lambda: loaded.to(device).eval())
    return LoadedModel(
        model=loaded,
        name=Path(model).name if Path(model).expanduser().exists() else model,
        max_context=_max_context(model, loaded.config),
        eos_ids=tuple(_ids(loaded.config, config.get_text_config(), loaded.generation_config)),
    )


def load_tokenizer(model: str, *, trust_remote_code: bool = False) -> LoadedTokenizer:
    """Load the tokenizer of a model; errors as in :func:`load_model`."""
    source, options = _source(model)
    read: Callable[..., Any] = AutoTokenizer.from_pretrained
    tokenizer = _door(model, lambda: read(source, trust_remote_code=trust_remote_code, **options))
    text = _tokenizer_file(source) if not options else None
    if text is None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModelError(f"{model}: has no fast tokenizer; convert it to a tokenizer.json first")
        text = str(backend.to_str())
    parsed = _door(model, lambda: Tokenizer.from_str(text))
    vocabulary = parsed.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise UnsupportedModelError(f"{model}: its tokenizer has no tokens")
    special = [token.content for token in parsed.get_added_tokens_decoder().values() if token.special]
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return LoadedTokenizer(
        json=text,
        chat_template=template,
        special_tokens={name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)},
        size=1 + max(vocabulary.values()),
        eos_ids=tuple(_ids(tokenizer)),
        fingerprint=vocabulary_fingerprint(vocabulary, special),
    )


def _source(model: str) -> tuple[str, dict[str, Any]]:
    """What to give ``from_pretrained``; a path that is none is told from a hub id before anything is looked up."""
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ModelNotFoundError(f"{model}: no such file")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{model}: the folder has no config.json, so it holds no transformers model")
        return str(path), {}
    if not model or path.exists() or model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise ModelNotFoundError(f"{model!r}: neither a folder, a GGUF file nor a hub id")
    return model, {}


def _door(model: str, load: Callable[[], _Result]) -> _Result:
    """The one place where what transformers raises becomes ours."""
    try:
        return load()
    except ImportError as error:
        raise MissingDependencyError(f"{model}: {_first_line(error)}") from error
    except OSError as error:
        if "safetensors" in str(error):
            raise ModelNotFoundError(
                f"{model}: has no weights in safetensors; pickled ones (.bin) can run code and are not read: load them "
                "where they are trusted and save them with save_pretrained"
            ) from error
        raise ModelNotFoundError(
            f"{model}: cannot be loaded: {_first_line(error)}; check the name, the network and HF_TOKEN, "
            "or give a folder"
        ) from error
    except torch.OutOfMemoryError as error:
        raise UnsupportedModelError(f"{model}: does not fit the memory of the device") from error
    except Exception as error:  # transformers and what it calls raise anything at all
        raise UnsupportedModelError(
            f"{model}: transformers {transformers.__version__} cannot load it: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _refuse_by_config(model: str, config: Any) -> None:
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedModelError(f"{model}: encoder-decoder models are not supported; use a decoder-only one")
    odd = sorted(set(getattr(text, "layer_types", None) or ()) - _ATTENDING)
    if odd:
        raise UnsupportedModelError(
            f"{model}: has layers of type {', '.join(odd)}, whose state cannot be rolled back exactly; use a model "
            "with full or sliding-window attention only"
        )
    if getattr(text, "attention_chunk_size", None):
        raise UnsupportedModelError(f"{model}: chunked attention is not supported")


def _max_context(model: str, config: Any) -> int:
    """The longest sequence at which every position means the same whatever else is in the batch.

    RoPE of kind "longrope" switches its frequencies, for the whole batch, when any position passes the original
    length; streams are kept below it.
    """
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "seq_length", None)
    if not isinstance(limit, int) or limit < 2:
        raise UnsupportedModelError(f"{model}: its configuration states no context length")
    for rope in _rope_settings(text):
        if rope.get("rope_type", rope.get("type")) in ("longrope", "su", "dynamic"):
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            limit = min(limit, original or limit)
    return limit


def _rope_settings(config: Any) -> Iterator[dict[str, Any]]:
    """RoPE dictionaries of either line of transformers, those kept per layer type included."""
    for name in ("rope_scaling", "rope_parameters"):
        settings = getattr(config, name, None)
        if isinstance(settings, dict):
            yield settings
            yield from (value for value in settings.values() if isinstance(value, dict))


def _ids(*sources: Any) -> Iterable[int]:
    for source in sources:
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            yield from ids if isinstance(ids, list | tuple) else [ids]


def _tokenizer_file(source: str) -> str | None:
    """The text of the model's own tokenizer.json, byte for byte what a draft's bundle was made from; None if absent."""
    try:
        found = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    except OSError:
        return None
    if found is None:
        return None
    text = Path(found).read_text(encoding="utf-8")
    return text if isinstance(json.loads(text), dict) else None
