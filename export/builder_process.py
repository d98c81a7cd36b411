"""Running a graph builder as its own process, so that its chatter, imports and memory stay out of ours."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BuilderFailedError", "run_builder"]

_LOG_TAIL_LINES = 40


class BuilderFailedError(Exception):
    """A builder ended with an error; ``reason`` is the last line it printed. Never leaves the two builder files."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def run_builder(module: str, arguments: Sequence[str], *, log: Path, verbose: bool = False) -> None:
    """Run ``python -m module arguments`` to its end, everything it prints going to ``log``.

    The model is a local folder by now, so the builder is kept from the network.

    Raises:
        BuilderFailedError: it ended with a non-zero status.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONIOENCODING": "utf-8"}
    with log.open("w", encoding="utf-8") as output:
        finished = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            check=False,
        )
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if verbose:
        sys.stderr.writelines(f"{line}\n" for line in lines[-_LOG_TAIL_LINES:])
    if finished.returncode != 0:
        raise BuilderFailedError(_reason(lines, finished.returncode))


def _reason(lines: Sequence[str], status: int) -> str:
    """The exception line that ends a traceback, or what else is known."""
    said = [line.strip() for line in lines if line.strip()]
    if status < 0:
        return f"killed by signal {-status}, perhaps for want of memory"
    return said[-1][:200] if said else f"exit status {status}"
