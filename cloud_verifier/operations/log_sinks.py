"""Where log lines go: a file that may be rotated, or standard error. Each line is one write, whole or an error."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

from ...protocol.errors import InvalidParameterError

__all__ = ["FileSink", "Sink", "StderrSink"]

_MODE = 0o640


class Sink(Protocol):
    """Takes lines, in one thread. OSError where one cannot be written."""

    def write(self, line: str) -> None:
        """Write a line, which comes without its end."""

    def close(self) -> None:
        """Let go of it."""


class FileSink:
    """A file to which lines are appended.

    Whoever rotates it just moves it away: the next line goes to a new file of the same name. Nothing is buffered, so
    that a full disk is noticed at the line that does not fit, and leaves nothing behind that fails again later.

    Args:
        path: of the file.

    Raises:
        InvalidParameterError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None
        self._cut = False
        try:
            self._file = self._open()
        except OSError as error:
            raise InvalidParameterError("--log-file", f"{path} cannot be written: {error.strerror}") from None

    def write(self, line: str) -> None:
        """See :class:`Sink`."""
        data = f"{line}\n".encode("utf-8", "backslashreplace")
        file = self._current()
        if self._cut:  # the rest of a line that was cut short will never come
            data = b"\n" + data
        self._cut = True
        _write_all(file, data)
        self._cut = False

    def _current(self) -> int:
        """The file that has the name now."""
        if self._file is not None:
            try:
                there, ours = os.stat(self._path), os.fstat(self._file)
            except FileNotFoundError:
                there, ours = None, None
            if there is None or ours is None or (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino):
                self.close()
        if self._file is None:
            self._file = self._open()
            self._cut = False
        return self._file

    def _open(self) -> int:
        return os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def close(self) -> None:
        """See :class:`Sink`."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


class StderrSink:
    """Standard error, past Python's buffer where there is a file behind it: a reader that has stalled then holds up no
    one who needs that buffer, the end of the program included.
    """

    def write(self, line: str) -> None:
        """See :class:`Sink`."""
        stream = sys.stderr
        try:
            file = stream.fileno()
        except (AttributeError, OSError, ValueError):  # there is none, or it is held by something else
            file = None
        if file is not None:
            _write_all(file, f"{line}\n".encode("utf-8", "backslashreplace"))
        elif stream is not None:
            stream.write(f"{line}\n")

    def close(self) -> None:
        """See :class:`Sink`."""


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
