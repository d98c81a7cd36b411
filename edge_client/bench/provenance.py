"""What a run's figures belong to: versions, machine, models, command line."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ...protocol.manifest import Manifest
from ...protocol.messages import Welcome
from .prompts import BenchPrompt

__all__ = ["describe_draft", "describe_machine", "describe_target", "describe_work", "provenance"]

_LIBRARIES = ("onnxruntime", "numpy", "websockets", "tokenizers", "torch", "transformers")
_PACKAGE = Path(__file__).resolve().parents[2]


def provenance(arguments: Sequence[str]) -> dict[str, Any]:
    """Everything but the models; ``arguments`` are the command's own."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["draftwire", *arguments]),
        "draftwire": importlib.metadata.version("draftwire"),
        "commit": _commit(_PACKAGE),
        "python": platform.python_version(),
        "libraries": _versions(),
        "machine": describe_machine(),
    }


def describe_machine() -> dict[str, Any]:
    """The machine this process runs on. ``usable_cores`` is what it may use, before cores are split."""
    can = hasattr(os, "sched_getaffinity")
    return {
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if can else os.cpu_count(),
    }


def describe_draft(manifest: Manifest) -> dict[str, Any]:
    """The draft by its manifest; ``sha256`` is of its graph."""
    graph = manifest.files.get(manifest.graph.file)
    return {
        "name": manifest.name,
        "fingerprint": manifest.vocabulary.fingerprint,
        "builder": manifest.builder,
        "quantization": manifest.quantization.scheme,
        "block_size": manifest.quantization.block_size,
        "sha256": graph.sha256 if graph is not None else None,
    }


def describe_target(welcome: Welcome, *, dtype: str | None) -> dict[str, Any]:
    """The target by the verifier's own words; ``dtype`` where this run chose it."""
    return {"name": welcome.target, "fingerprint": welcome.fingerprint.hex(), "dtype": dtype}


def describe_work(prompts: Sequence[BenchPrompt], *, max_tokens: int, repeats: int) -> str:
    """What was asked, in a line."""
    tasks = ", ".join(dict.fromkeys(prompt.task for prompt in prompts))
    count = f"{len(prompts)} prompt{'' if len(prompts) == 1 else 's'} ({tasks})"
    return f"{count}, {f'{repeats} answers to each, ' if repeats > 1 else ''}at most {max_tokens} tokens an answer"


def _versions() -> dict[str, str]:
    """Of what is installed, found without importing it."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit(folder: Path) -> str | None:
    """The commit of a checkout, ``+changes`` where files differ from it; None outside of one or without git."""
    if not (folder / ".git").exists():
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    return f"{commit}+changes" if _git(folder, "status", "--porcelain") else commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    """The processor's model, as people know it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
