"""Whoever logs never waits and never fails; what is lost is counted and told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from draftwire.cloud_verifier.operations.log_sinks import Sink
from draftwire.cloud_verifier.operations.log_writer import LogWriter

from ...grace import GRACE


class Lines:
    """A sink that keeps lines, fails while ``full``, and can be held."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.full = False
        self.closed = False
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Semaphore(0)

    def write(self, line: str) -> None:
        self.entered.release()
        assert self.free.wait(GRACE)
        if self.full:
            raise OSError(28, "No space left on device")
        self.lines.append(line)

    def close(self) -> None:
        self.closed = True

    def until_written(self, lines: int) -> None:
        for _ in range(lines):
            assert self.entered.acquire(timeout=GRACE)


@contextmanager
def writing(sink: Sink, *, most_waiting: int = 100) -> Iterator[tuple[logging.Logger, LogWriter]]:
    writer = LogWriter(sink, logging.Formatter(), most_waiting=most_waiting)
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(writer)
    try:
        yield logger, writer
    finally:
        writer.close()


def test_lines_come_in_order_and_all_of_them_before_the_end() -> None:
    sink = Lines()
    with writing(sink) as (logger, _):
        for number in range(50):
            logger.info("line %d", number)
    assert sink.lines == [f"line {number}" for number in range(50)]
    assert sink.closed


def test_an_argument_that_changes_afterwards() -> None:
    sink, things = Lines(), [1]
    sink.free.clear()
    with writing(sink) as (logger, _):
        logger.info("%s", things)
        things.append(2)
        sink.free.set()
    assert sink.lines == ["[1]"]


def test_a_full_disk_is_counted_told_once_and_overcome(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Lines()
    sink.full = True
    with writing(sink) as (logger, writer):
        for number in range(5):
            logger.info("lost %d", number)
        sink.until_written(5)
        logger.info("the last one fails for certain")
        sink.until_written(1)
        sink.full = False
        logger.info("found")
    assert writer.errors == 6
    assert sink.lines == ["6 log lines before this one could not be written", "found"]
    assert capsys.readouterr().err == "log lines cannot be written: No space left on device; going on without them\n"


def test_a_sink_that_stalls_holds_nobody_up() -> None:
    sink = Lines()
    sink.free.clear()
    with writing(sink, most_waiting=10) as (logger, writer):
        logger.info("first")
        sink.until_written(1)  # it is being written from now on
        for _ in range(30):
            logger.info("more")
        assert writer.dropped == 20
        sink.free.set()
    assert sink.lines == ["first", *["more"] * 10]


def test_the_end_does_not_wait_for_a_sink_that_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwire.cloud_verifier.operations.log_writer._CLOSE_SECONDS", 0.01)
    sink = Lines()
    sink.free.clear()
    with writing(sink, most_waiting=1) as (logger, writer):
        logger.info("first")
        sink.until_written(1)
        logger.info("second")
    assert writer._thread.is_alive()
    sink.free.set()


class Angry:
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no")


def test_a_record_that_cannot_be_shown_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    sink = Lines()
    with writing(sink) as (logger, writer):
        logger.info("%d", "three")
        logger.info("%s", Angry())
        logger.info("fine")
    assert sink.lines == ["fine"]
    assert writer.errors == 2
    assert capsys.readouterr().err == ""
