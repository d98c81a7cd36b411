"""Keeping third-party chatter (progress bars, warnings, log lines) off the user's terminal."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Iterator

__all__ = ["hushed"]


@contextlib.contextmanager
def hushed(*, verbose: bool = False) -> Iterator[None]:
    """Run third-party code without letting it print, warn or log; ``verbose`` lets everything through to stderr.

    Progress bars write to ``sys.stderr`` as it is at the time of the call, so redirecting it catches them too.
    """
    if verbose:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("default")
            yield
        return
    previous = logging.root.manager.disable
    sink = io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
