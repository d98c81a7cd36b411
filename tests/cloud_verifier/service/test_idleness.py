"""How long a connection may be silent, on a clock that is set by hand."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.service.idleness import Idleness


class Clock:
    """Tells what it is set to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_hello_must_come_in_time(clock: Clock) -> None:
    idleness = Idleness(hello_seconds=10.0, idle_seconds=lambda: 600.0, clock=clock)
    assert idleness.remaining == 10.0
    clock.now += 10.0
    assert idleness.remaining <= 0
    assert "HELLO within 10 s" in idleness.reason


def test_time_without_a_stream_is_counted_from_hello_and_from_the_last_stream(clock: Clock) -> None:
    idleness = Idleness(hello_seconds=10.0, idle_seconds=lambda: 12.0, clock=clock)
    clock.now += 9.0
    idleness.note(greeted=True, streams=False)
    assert idleness.remaining == 12.0
    clock.now += 5.0
    idleness.note(greeted=True, streams=False)  # no stream, so this was no activity
    assert idleness.remaining == 7.0
    idleness.note(greeted=True, streams=True)
    clock.now += 1000.0
    assert idleness.remaining > 0
    idleness.note(greeted=True, streams=False)
    assert idleness.remaining == 12.0
    clock.now += 12.0
    assert idleness.remaining <= 0
    assert "no stream for 12 s" in idleness.reason


def test_never_and_limits_that_change(clock: Clock) -> None:
    limit = [0.0]
    idleness = Idleness(idle_seconds=lambda: limit[0], clock=clock)
    idleness.note(greeted=True, streams=False)
    clock.now += 1e6
    assert 0 < idleness.remaining <= 60  # looks again before long
    limit[0] = 5.0
    assert idleness.remaining <= 0
