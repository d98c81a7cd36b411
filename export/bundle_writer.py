"""Writing a bundle whole or not at all: everything is made in a folder beside the target, then renamed."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..protocol.errors import InvalidParameterError
from ..protocol.manifest import MANIFEST_NAME, BundleFile, Manifest, file_sha256
from .vocabulary import TokenizerFiles
from .work_folder import replace_folder

__all__ = ["CHAT_TEMPLATE_NAME", "TOKENIZER_NAME", "demand_writable", "finish", "publish", "save_graph"]

GRAPH_NAME = "model.onnx"
WEIGHTS_NAME = "model.onnx.data"
TOKENIZER_NAME = "tokenizer.json"
CHAT_TEMPLATE_NAME = "chat_template.jinja"


def demand_writable(out: Path) -> None:
    """Refuse a target that is something else than a bundle, before any work is done.

    Raises:
        InvalidParameterError: ``out`` exists and is neither empty nor a bundle.
        OSError: its parent folder cannot be made or written.
    """
    if out.exists() and not out.is_dir():
        raise InvalidParameterError("--out", f"{out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST_NAME).is_file():
        raise InvalidParameterError("--out", f"{out} is not empty and holds no draft bundle; give another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out.parent):
        pass


def save_graph(model: Any, folder: Path) -> Path:
    """Write an onnx_ir model with its weights in one file beside it, named relative to the graph."""
    import onnx_ir as ir

    folder.mkdir(parents=True, exist_ok=True)
    ir.save(model, folder / GRAPH_NAME, external_data=WEIGHTS_NAME)
    return folder / GRAPH_NAME


def model_bytes(folder: Path) -> int:
    """Size of graph and weights."""
    return sum((folder / name).stat().st_size for name in (GRAPH_NAME, WEIGHTS_NAME) if (folder / name).exists())


def finish(folder: Path, manifest: Manifest, tokenizer: TokenizerFiles) -> Manifest:
    """Write tokenizer, template and manifest beside the graph; the manifest gets every file's size and hash."""
    (folder / TOKENIZER_NAME).write_text(tokenizer.tokenizer_json, encoding="utf-8")
    if tokenizer.chat_template:
        (folder / CHAT_TEMPLATE_NAME).write_text(tokenizer.chat_template, encoding="utf-8")
    files = {
        path.name: BundleFile(size=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST_NAME
    }
    complete = replace(manifest, files=files)
    complete.save(folder)
    return complete


def publish(folder: Path, out: Path) -> None:
    """Put the finished ``folder`` in the place of ``out``; a bundle that was there is removed afterwards."""
    folder.chmod(0o755)  # temporary folders are private, bundles are not
    replace_folder(folder, out)
