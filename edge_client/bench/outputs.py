"""Files to write at the end of a long run: tried at its beginning, and then each whatever becomes of the others."""

from __future__ import annotations

import os
import stat
from collections.abc import Hashable, Mapping
from pathlib import Path

from ...protocol.errors import InvalidParameterError

__all__ = ["check_outputs", "write_output"]


def check_outputs(files: Mapping[str, str]) -> None:
    """Find out whether files can be written; none is changed, and none is left where there was none.

    Args:
        files: by the options that name them.

    Raises:
        InvalidParameterError: naming the option: the file cannot be written, or it is another option's, too.
    """
    owners: dict[Hashable, str] = {}
    for option, file in files.items():
        try:
            owner = owners.setdefault(_identity(file), option)
            if owner == option:
                _try(Path(file))
        except OSError as error:
            raise InvalidParameterError(option, _problem(file, error)) from error
        if owner != option:
            raise InvalidParameterError(option, f"{file} is the file of {owner}, too; give each a file of its own")


def write_output(option: str, file: str, content: str | bytes) -> str | None:
    """Write a file, text as UTF-8; returns what went wrong, in a line that names the option."""
    try:
        Path(file).write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    except OSError as error:
        return f"{option}: {_problem(file, error)}"
    return None


def _identity(file: str) -> Hashable:
    """The same for the same file by two names; of what is no file, such as ``/dev/null``, never the same."""
    try:
        status = os.stat(file)
    except OSError:
        return os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else object()


def _try(path: Path) -> None:
    """Raises OSError where the path cannot be written. What is no file is not opened: a reader may wait behind it."""
    if not path.exists():
        real = Path(os.path.realpath(path))  # a link to nothing is not what has to go again
        with real.open("xb"):
            pass
        real.unlink()
    elif path.is_file() or path.is_dir():
        with path.open("ab"):
            pass
    elif not os.access(path, os.W_OK):
        raise PermissionError("Permission denied")


def _problem(file: str, error: OSError) -> str:
    return f"{file} cannot be written: {error.strerror or error}"
