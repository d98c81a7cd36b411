"""Log lines are written in a thread of their own: whoever logs never waits, and never hears that writing failed."""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time

from .log_sinks import Sink, StderrSink

__all__ = ["LogWriter"]

_MOST_WAITING = 10_000
_CLOSE_SECONDS = 2.0


class LogWriter(logging.Handler):
    """Takes records in any thread and writes them in one.

    A full disk, a reader that has stalled and a record that cannot be formatted cost log lines, which are counted, and
    nothing else. When lines can be written again, one says how many are missing.

    Attributes:
        errors: lines that could not be written or formatted.
        dropped: lines that found too many others waiting.
    """

    def __init__(self, sink: Sink, formatter: logging.Formatter, *, most_waiting: int = _MOST_WAITING) -> None:
        super().__init__()
        self.errors = 0
        self.dropped = 0
        self._sink = sink
        self._missing = 0
        self._told = False
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(most_waiting)
        self.setFormatter(formatter)
        self._thread = threading.Thread(target=self._run, name="draftwire-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record; its arguments may change after this, so the message is made now."""
        try:
            record.message = record.msg = record.getMessage()
            record.args = None
        except Exception:  # whatever the arguments do when they are asked for their text
            self.handleError(record)
            return
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def handleError(self, record: logging.LogRecord) -> None:
        """Count; see :meth:`logging.Handler.handleError`, which would fill standard error with tracebacks."""
        del record
        self.errors += 1

    def close(self) -> None:
        """Write what waits, for a short while, and end. May be called again."""
        until = time.monotonic() + _CLOSE_SECONDS
        try:
            self._queue.put(None, timeout=_CLOSE_SECONDS)
            self._thread.join(max(0.0, until - time.monotonic()))
        except queue.Full:  # the sink has stalled, and its thread will end with the program
            pass
        super().close()

    # --- in its own thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (record := self._queue.get()) is not None:
            self._write(record)
        self._sink.close()

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:  # of a value that cannot be shown
            self.handleError(record)
            return
        try:
            if self._missing:
                self._sink.write(self.format(self._gap()))
                self._missing = 0
                self._told = False
            self._sink.write(line)
        except Exception as error:  # a full disk, a closed pipe: the service goes on without its log
            self.errors += 1
            self._missing += 1
            self._tell(error)

    def _gap(self) -> logging.LogRecord:
        message = "%d log lines before this one could not be written"
        return logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, (self._missing,), None)

    def _tell(self, error: Exception) -> None:
        """Say it once on standard error, where that is not what has failed."""
        if self._told or isinstance(self._sink, StderrSink):
            return
        self._told = True
        problem = getattr(error, "strerror", None) or type(error).__name__
        try:
            print(f"log lines cannot be written: {problem}; going on without them", file=sys.stderr, flush=True)
        except (OSError, ValueError, AttributeError):
            self.errors += 1
