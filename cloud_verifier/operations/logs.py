"""Logging of the program: set up once, taken down at its end."""

from __future__ import annotations

import argparse
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .log_lines import JsonLines, PlainLines
from .log_sinks import FileSink, StderrSink
from .log_writer import LogWriter

__all__ = ["logging_as_asked"]

logger = logging.getLogger(__name__)


@contextmanager
def logging_as_asked(parsed: argparse.Namespace) -> Iterator[LogWriter]:
    """Log as ``--log-level``, ``--log-format`` and ``--log-file`` say, until the block ends.

    Python's warnings, and whatever ends a thread, are logged as well: to standard error they would go past the file
    and the format that were asked for.

    Raises:
        InvalidParameterError: the file cannot be opened.
    """
    sink = StderrSink() if parsed.log_file is None else FileSink(parsed.log_file)
    writer = LogWriter(sink, JsonLines() if parsed.log_format == "json" else PlainLines())
    root, hook = logging.getLogger(), threading.excepthook
    level = root.level
    root.setLevel(parsed.log_level.upper())
    root.addHandler(writer)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_death
    try:
        yield writer
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        root.removeHandler(writer)
        root.setLevel(level)
        writer.close()


def _log_thread_death(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is SystemExit or args.exc_value is None:
        return
    name = args.thread.name if args.thread is not None else "unknown"
    logger.critical("thread %s has died", name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))
