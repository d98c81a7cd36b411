"""Making a folder beside its final place, one process at a time, so that it can be renamed there whole."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from .terminal import Say, say_nothing

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

__all__ = ["remove_leftovers", "replace_folder", "work_folder"]

_PARTIAL, _OLD = ".partial", ".old"
_POLL_SECONDS = 0.2


@contextlib.contextmanager
def work_folder(place: Path, *, say: Say = say_nothing) -> Iterator[Path]:
    """A temporary folder beside ``place``, on the same file system, that is gone at the end with all in it.

    One process at a time has a work folder of a place: others wait here. What a killed process left is removed.

    Args:
        place: the folder to be made; its parent exists.
        say: told if another process has to be waited for.
    """
    with _locked(place, say) as alone:
        if alone:
            remove_leftovers(place, _PARTIAL)
        with _beside(place, _PARTIAL) as folder:
            yield folder


def replace_folder(made: Path, place: Path) -> None:
    """Put the finished folder ``made`` in the place of ``place``; what was there is moved aside, then removed.

    Nothing is removed before the new folder is in its place, and a reader of the old one keeps the files it has open.
    """
    if not place.exists():
        made.rename(place)
        return
    with _beside(place, _OLD) as aside:
        former = aside / "former"
        place.rename(former)
        try:
            made.rename(place)
        except OSError:
            former.rename(place)
            raise
    remove_leftovers(place, _OLD)


def remove_leftovers(place: Path, suffix: str) -> None:
    """Remove the temporary folders of ``place`` that end in ``suffix``; only its lock's holder may do so."""
    pattern = re.compile(rf"\.{re.escape(place.name)}\.[a-z0-9_]{{8}}{re.escape(suffix)}")
    for path in place.parent.iterdir():
        if pattern.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _beside(place: Path, suffix: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(
        dir=place.parent, prefix=f".{place.name}.", suffix=suffix, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)


@contextlib.contextmanager
def _locked(place: Path, say: Say) -> Iterator[bool]:
    """Hold the lock of ``place``. The system lets go of it when a process ends, however it ends, so none is stale.

    Yields False where the file system knows no locks: then the last of several processes wins.
    """
    path = place.parent / f".{place.name}.lock"
    waiting = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            got = _try_lock(descriptor)
        except OSError:
            os.close(descriptor)
            yield False
            return
        if got and _is_same_file(descriptor, path):
            break
        os.close(descriptor)  # taken, or removed by its former holder before we had it
        if got:
            continue
        if not waiting:
            say(f"Waiting for another process that makes {place.name}")
            waiting = True
        time.sleep(_POLL_SECONDS)
    try:
        yield True
    finally:
        _release(descriptor, path)


def _release(descriptor: int, path: Path) -> None:
    """Remove the lock's file while it is still ours; Windows removes only a file that nobody has open."""
    if sys.platform == "win32":
        os.close(descriptor)
        with contextlib.suppress(OSError):
            path.unlink()
        return
    path.unlink(missing_ok=True)
    os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    """Take the lock of an open file if nobody has it. OSError where the file system has no locks."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _is_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
