"""Who, how much, how fast, and what became of it; and no more than that."""

from __future__ import annotations

import logging

import pytest
from draftwire.cloud_verifier.operations.log_lines import details
from draftwire.cloud_verifier.operations.request_log import RequestLog
from draftwire.protocol.messages import Policy

from .streams import Client, commit, stream_of


class Kept(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[logging.LogRecord]:
    logger, kept = logging.getLogger("draftwire.requests"), Kept()
    monkeypatch.setattr(logger, "handlers", [kept])
    monkeypatch.setattr(logger, "isEnabledFor", lambda level: level >= logging.INFO)
    return kept.records


def test_a_line_at_each_end_of_a_stream(lines: list[logging.LogRecord]) -> None:
    log = RequestLog(clock=lambda: 103.25)
    stream = stream_of(stream=4, opened_at=100.0, policy=Policy.COST)
    log.opened(stream, waited=0.5)
    commit(log, stream, 101.5, drafted=4, accepted=2)
    commit(log, stream, 103.0)
    log.preempted(stream)
    log.ended(stream, "stop")
    opened, preempted, ended = lines
    whose = {"request_id": "r-1", "tenant": "acme", "route": "chat", "stream": 4}
    assert details(opened) == {
        **whose,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "max_tokens": 50,
        "speculation": "on",
        "policy": "cost",
        "waited_seconds": 0.5,
    }
    assert details(preempted) == whose
    assert details(ended) == {
        **whose,
        "outcome": "stop",
        "speculation": "on",
        "prompt_tokens": 3,
        "committed_tokens": 4,
        "drafted_tokens": 4,
        "accepted_tokens": 2,
        "run_ahead_tokens": 1,
        "target_passes": 2,
        "first_token_seconds": 1.5,
        "seconds": 3.25,
    }
    assert [line.getMessage() for line in lines] == [
        "r-1 stream 4: opened, 3 prompt tokens, 0 of them known",
        "r-1 stream 4: gave its memory up and waits",
        "r-1 stream 4: stop, 4 tokens in 3.25 s, 2 of 4 draft tokens accepted",
    ]


def test_a_stream_that_got_nothing(lines: list[logging.LogRecord]) -> None:
    log, stream = RequestLog(), stream_of(Client(request_id=""))
    log.opened(stream, waited=0.0)
    log.ended(stream, "left")
    assert details(lines[-1])["first_token_seconds"] is None
    assert lines[-1].getMessage().startswith("acme stream 1: left, 0 tokens in ")


def test_refusals_are_told_up_to_a_limit_and_counted_beyond(lines: list[logging.LogRecord]) -> None:
    now = 50.0
    log = RequestLog(clock=lambda: now)
    for _ in range(1000):
        log.refused(Client(), "busy")
    assert len(lines) == 20
    assert details(lines[0]) == {"request_id": "r-1", "tenant": "acme", "route": "chat", "reason": "busy"}
    now = 51.0
    log.refused(Client(), "busy")
    assert lines[-1].getMessage() == "r-1: refused, busy (and 980 others were)"
    assert details(lines[-1])["unlogged_refusals"] == 980


def test_no_token_is_logged(lines: list[logging.LogRecord]) -> None:
    log, stream = RequestLog(), stream_of(token_ids=(987654, 123123, 3), prompt_length=3, stop_ids=(555777,))
    log.opened(stream, waited=0.0)
    log.ended(stream, "stop")
    assert len(lines) == 2
    shown = repr([(vars(line), line.getMessage()) for line in lines])
    assert not any(token in shown for token in ("987654", "123123", "555777"))


def test_nothing_is_kept_of_streams_that_are_over() -> None:
    log, stream = RequestLog(), stream_of()
    log.opened(stream, waited=0.0)
    commit(log, stream, 101.0)
    log.ended(stream, "stop")
    assert len(log._lives) == 0
