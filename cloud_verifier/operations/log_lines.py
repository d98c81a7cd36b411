"""How a log record looks: one line of JSON, or a line for people. Neither can be forged, and neither shows a key."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime

__all__ = ["JsonLines", "PlainLines", "details"]

_MOST_LETTERS = 8192
"""Of one text in a record; a library that logs whole requests must not fill the disk."""

_OWN = frozenset(vars(logging.LogRecord("", 0, "", 0, "", (), None))) | {"message", "asctime", "taskName"}
_CREDENTIAL = re.compile(r"\b(bearer|basic)(\s+|%20)[\w.~+/=-]{4,}", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def details(record: logging.LogRecord) -> Mapping[str, object]:
    """What was logged with a record as ``extra``."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonLines(logging.Formatter):
    """One JSON object a line: ``ts`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, what was logged with it by
    name, and ``exception`` with the whole traceback.
    """

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        line: dict[str, object] = {
            "ts": _timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        for name, value in details(record).items():
            line.setdefault(name, _plain(value))
        trace = _traceback(self, record)
        if trace:
            line["exception"] = trace
        return json.dumps(line, allow_nan=False)


class PlainLines(logging.Formatter):
    """A line for people; of a traceback each further line is indented, so that none looks like a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        stamp = datetime.fromtimestamp(record.created).astimezone().isoformat(sep=" ", timespec="milliseconds")
        message = _CONTROL.sub(_escape, _clean(record.getMessage()))
        trace = _traceback(self, record)
        indented = "".join(f"\n    {_CONTROL.sub(_escape, line)}" for line in trace.split("\n")) if trace else ""
        return f"{stamp} {record.levelname} {record.name}: {message}{indented}"


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """What went wrong, its stack included; the last part is what matters where it is long."""
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(record.stack_info)
    return _CREDENTIAL.sub(_hide, "\n".join(parts))[-_MOST_LETTERS:]


def _plain(value: object) -> object:
    """What JSON has a word for, as it is; anything else as text."""
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _clean(value if isinstance(value, str) else str(value))


def _clean(text: str) -> str:
    shown = _CREDENTIAL.sub(_hide, text)
    return shown if len(shown) <= _MOST_LETTERS else f"{shown[:_MOST_LETTERS]} [and {len(shown) - _MOST_LETTERS} more]"


def _hide(match: re.Match[str]) -> str:
    return f"{match[1]} [hidden]"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
