"""Folders that are made once and kept: written beside their place, marked complete with hashes, then renamed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

from ..protocol.manifest import file_sha256
from .terminal import Say, say_nothing
from .work_folder import replace_folder, work_folder

__all__ = ["COMPLETE_NAME", "cache_root", "is_complete", "kept_folder", "mark_complete"]

COMPLETE_NAME = "complete.json"


def cache_root(cache: Path | None = None) -> Path:
    """``cache``, or ``$DRAFTWIRE_CACHE``, or the platform's place for such files."""
    if cache is not None:
        return cache.expanduser()
    if configured := os.environ.get("DRAFTWIRE_CACHE"):
        return Path(configured).expanduser()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "draftwire"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "draftwire"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwire"


def kept_folder(
    folder: Path, make: Callable[[Path], None], *, complete: Callable[[Path], bool], say: Say = say_nothing
) -> Path:
    """``folder`` as it is if it is ``complete``; otherwise made anew by ``make`` in a temporary folder beside it.

    A folder that was damaged, or left half-written by something else, is replaced. Of several processes that want the
    same folder at once, one makes it; the others wait and use the result.
    """
    if complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with work_folder(folder, say=say) as work:
        if complete(folder):  # made by the process that was waited for
            return folder
        made = work / folder.name
        made.mkdir()
        make(made)
        try:
            replace_folder(made, folder)
        except OSError:  # without locks, another process may have been first
            if not complete(folder):
                raise
    return folder


def mark_complete(folder: Path) -> None:
    """Write the list of all files with their sizes and hashes: the last thing that is written into a folder."""
    files = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != COMPLETE_NAME
    }
    (folder / COMPLETE_NAME).write_text(json.dumps(files, indent=2) + "\n", encoding="utf-8")


def is_complete(folder: Path) -> bool:
    """Whether every file that :func:`mark_complete` listed is there and unchanged."""
    try:
        files = json.loads((folder / COMPLETE_NAME).read_text(encoding="utf-8"))
        return all(
            (folder / name).stat().st_size == entry["size"] and file_sha256(folder / name) == entry["sha256"]
            for name, entry in files.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
