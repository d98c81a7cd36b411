"""Logging as the command line asks for it, and as it was before once that is over."""

from __future__ import annotations

import argparse
import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.operations.logs import logging_as_asked
from draftwire.cloud_verifier.operations.options import add_log_options
from draftwire.protocol.errors import InvalidParameterError


def parse(*arguments: str, level: str = "info") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-level", default=level)
    add_log_options(parser)
    return parser.parse_args(arguments)


def logged(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_text_on_standard_error_unless_asked_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_as_asked(parse()):
        logging.getLogger("x").info("hello")
        logging.getLogger("x").debug("not so")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(" INFO x: hello")


def test_json_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    with logging_as_asked(parse("--log-format", "json", "--log-file", str(path), level="debug")):
        logging.getLogger("x").debug("hello", extra={"request_id": "r"})
    (line,) = logged(path)
    assert (line["message"], line["level"], line["request_id"]) == ("hello", "debug", "r")
    assert capsys.readouterr().err == ""


def test_a_thread_that_dies_and_a_warning_are_logged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"

    def die() -> None:
        raise RuntimeError("boom")

    with (
        warnings.catch_warnings(),
        logging_as_asked(parse("--log-format", "json", "--log-file", str(path))),
    ):
        warnings.simplefilter("always")
        thread = threading.Thread(target=die, name="the-engine")
        thread.start()
        thread.join()
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    death, warning = logged(path)
    assert (death["level"], death["message"]) == ("critical", "thread the-engine has died")
    assert death["exception"].endswith("RuntimeError: boom")
    assert (warning["level"], warning["logger"]) == ("warning", "py.warnings")
    assert capsys.readouterr().err == ""


def test_everything_is_as_before_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, hook = logging.getLogger(), list
    monkeypatch.setattr(threading, "excepthook", hook)
    monkeypatch.setattr(warnings, "showwarning", hook)
    before = (root.level, list(root.handlers), hook, hook)
    with logging_as_asked(parse("--log-file", str(tmp_path / "log"), level="error")) as writer:
        assert root.handlers[-1] is writer
    assert (root.level, list(root.handlers), threading.excepthook, warnings.showwarning) == before
    assert not writer._thread.is_alive()


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    hook = threading.excepthook
    with (
        pytest.raises(InvalidParameterError, match="--log-file: "),
        logging_as_asked(parse("--log-file", str(tmp_path / "no" / "log"))),
    ):
        pytest.fail("it began")
    assert threading.excepthook is hook
