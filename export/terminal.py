"""The standard streams: results on stdout, what is being done on stderr, and neither able to end an export.

A stream may be closed, full, or of an encoding that lacks a character: none of that may cost the user the minutes an
export takes, or end in a traceback.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from ..protocol.errors import DraftwireError

__all__ = ["Say", "prepare_streams", "say_nothing", "say_stage", "show", "tell"]

Say = Callable[[str], None]
"""Told of each stage as it begins: "Building the graph"."""

_STDIN, _STDOUT, _STDERR = 0, 1, 2


def prepare_streams() -> None:
    """Give closed streams a place to go, and let the others print any character, escaped where they lack it.

    A closed descriptor would be handed to the next file that is opened, and what a native library prints would then
    land in that file.
    """
    if None in (sys.stdin, sys.stdout, sys.stderr):
        while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(descriptor, True)
        os.close(descriptor)
        sys.stdin = sys.stdin or _null(_STDIN, "r")
        sys.stdout = sys.stdout or _null(_STDOUT, "w")
        sys.stderr = sys.stderr or _null(_STDERR, "w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def show(text: str = "") -> None:
    """Print a part of the result on stdout, at once; no text only flushes what was printed.

    Raises:
        DraftwireError: it could not be written.
    """
    try:
        if text:
            print(text)
        sys.stdout.flush()
    except OSError as error:
        _discard(sys.stdout)
        raise DraftwireError(f"the result could not be printed ({error.strerror or error})") from error


def tell(text: str) -> None:
    """Print a line on stderr, where that is possible."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def say_stage(stage: str) -> None:
    """Tell the user on stderr what is being done now."""
    tell(f"{stage} ...")


def say_nothing(stage: str) -> None:
    """A :data:`Say` for those who do not want to know."""
    del stage


def _null(descriptor: int, mode: str) -> TextIO:
    return open(descriptor, mode, encoding="utf-8", closefd=False)  # type: ignore[return-value]


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere: the interpreter tries once more at its end, and would complain there."""
    with contextlib.suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
