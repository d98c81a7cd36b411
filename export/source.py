"""Where a model comes from: a hub id, a Hugging Face folder or a GGUF file, brought to one local folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol.errors import DraftwireError, ModelNotFoundError
from ..protocol.manifest import file_sha256
from .chatter import hushed
from .dependencies import require

__all__ = ["SourceModel", "convert_gguf", "one_line", "opened_source"]

_WANTED = ("*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken")
_GGUF_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class SourceModel:
    """A model as a local Hugging Face folder; ``sha256`` is set where it was one file."""

    name: str
    folder: Path
    sha256: str | None = None


@contextlib.contextmanager
def opened_source(model: str, *, trust_remote_code: bool = False, verbose: bool = False) -> Iterator[SourceModel]:
    """Bring ``model`` to a local Hugging Face folder for the length of the context.

    A GGUF file is converted into a temporary folder, which is removed at the end.

    Raises:
        ModelNotFoundError: there is no such model, or it cannot be read as one.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{model} has no config.json, so it is not a Hugging Face model folder")
        yield SourceModel(path.resolve().name, path.resolve())
    elif path.is_file():
        with tempfile.TemporaryDirectory(prefix="draftwire-gguf-") as temporary:
            convert_gguf(path, Path(temporary), verbose=verbose)
            yield SourceModel(path.name, Path(temporary), file_sha256(path))
    elif _looks_like_path(model):
        raise ModelNotFoundError(f"no model at {model}: there is no such folder or file")
    else:
        yield SourceModel(model, _fetch_from_hub(model, trust_remote_code=trust_remote_code))


def convert_gguf(file: Path, folder: Path, *, verbose: bool = False) -> None:
    """Load a GGUF file with transformers, in fp32, and save model and tokenizer as a Hugging Face folder.

    Raises:
        ModelNotFoundError: the file is no GGUF file, is damaged, or holds an architecture transformers cannot read.
    """
    with file.open("rb") as stream:
        if stream.read(len(_GGUF_MAGIC)) != _GGUF_MAGIC:
            raise ModelNotFoundError(f"{file} is not a GGUF file; give a hub id, a Hugging Face folder or a GGUF file")
    require("gguf")
    require("accelerate")
    torch: Any = require("torch")
    transformers: Any = require("transformers")
    try:
        with hushed(verbose=verbose):
            options: dict[str, Any] = {"gguf_file": file.name}
            model = transformers.AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **options)
            tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, **options)
            _keep_special_tokens(tokenizer, file)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    except OSError as error:
        if error.errno is not None:  # a full disk or an unreadable file, not a matter of the format
            raise
        raise _unreadable(file, error) from error
    except Exception as error:
        raise _unreadable(file, error) from error


def _keep_special_tokens(tokenizer: Any, file: Path) -> None:
    """Give the tokenizer the special ids that the file names; transformers 4.57 mistakes some of them."""
    gguf: Any = require("gguf")
    fields = gguf.GGUFReader(file).fields
    for role, name in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
        field = fields.get(f"tokenizer.ggml.{name}_token_id")
        if field is not None:
            text = tokenizer.convert_ids_to_tokens(int(field.parts[-1][0]))
            setattr(tokenizer, f"{role}_token", text)


def one_line(error: BaseException, *, limit: int = 200) -> str:
    """The first line of a foreign exception's text, short enough for an error message; its type where it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _unreadable(file: Path, error: Exception) -> DraftwireError:
    return ModelNotFoundError(
        f"{file} cannot be read as a GGUF model ({one_line(error)}); it may be damaged or of an unsupported kind"
    )


def _looks_like_path(model: str) -> bool:
    """Whether ``model`` can only be meant as a file or folder, so that the hub need not be asked."""
    return model.startswith((".", "/", "~")) or model.endswith(".gguf") or "\\" in model or model.count("/") > 1


def _fetch_from_hub(model: str, *, trust_remote_code: bool) -> Path:
    """Download (or find in the hub's own cache) configuration, tokenizer and weights of a hub id."""
    hub: Any = require("huggingface_hub")
    wanted = [pattern for pattern in _WANTED if trust_remote_code or pattern != "*.py"]
    try:
        folder = Path(hub.snapshot_download(model, allow_patterns=[*wanted, "*.safetensors"]))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(model, allow_patterns=[*wanted, "pytorch_model*.bin"]))
    except OSError as error:
        if error.errno is not None and not isinstance(error, ConnectionError) and error.errno in _DISK_ERRORS:
            raise
        raise _not_on_hub(model, error) from error
    except Exception as error:
        raise _not_on_hub(model, error) from error
    if not (folder / "config.json").is_file():
        raise ModelNotFoundError(f"{model} has no config.json on the hub, so it is not a transformers model")
    return folder


_DISK_ERRORS = (13, 28, 30)  # no permission, no space left, read-only file system


def _not_on_hub(model: str, error: Exception) -> ModelNotFoundError:
    return ModelNotFoundError(
        f"no model {model!r}: no such folder or file here, and the hub did not give it ({one_line(error)}); "
        "check the name, the network and HF_TOKEN"
    )
