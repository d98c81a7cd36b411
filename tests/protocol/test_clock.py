from __future__ import annotations

import pytest
from draftwire.protocol.clock import (
    CLOCK_UNIT,
    clock_duration,
    clock_now,
    confidence,
    confidence_byte,
    rtt_seconds,
)
from draftwire.protocol.errors import InvalidParameterError
from hypothesis import given
from hypothesis import strategies as st


def test_the_clock_counts_quarter_milliseconds_and_wraps() -> None:
    assert clock_now(0.001) == 4
    assert clock_now(65536 * CLOCK_UNIT) == 0
    assert clock_duration(0.0209) == 83
    assert clock_duration(-1.0) == 0
    assert clock_duration(1e12) == 2**32 - 1


@given(
    sent=st.floats(0, 1e6), up=st.floats(0, 5), queued=st.floats(0, 60), computed=st.floats(0, 60), down=st.floats(0, 5)
)
def test_rtt_is_what_the_network_took(sent: float, up: float, queued: float, computed: float, down: float) -> None:
    received = sent + up + queued + computed + down
    measured = rtt_seconds(clock_now(received), clock_now(sent), clock_duration(queued), clock_duration(computed))
    assert measured == pytest.approx(up + down, abs=4 * CLOCK_UNIT)


def test_a_round_trip_shorter_than_a_tick_is_zero_not_sixteen_seconds() -> None:
    assert rtt_seconds(100, 99, 1, 1) == 0.0


def test_confidence_bytes() -> None:
    assert [confidence_byte(p) for p in (1.0, 0.5, 0.25, 2**-15.9, 1e-30, 0.0, 1.0000001)] == [
        0,
        16,
        32,
        254,
        255,
        255,
        0,
    ]
    assert confidence(0) == 1.0
    assert confidence(16) == 0.5
    assert confidence(255) < 2**-15.9
    with pytest.raises(InvalidParameterError, match="probability"):
        confidence_byte(float("nan"))


@given(st.integers(0, 255))
def test_every_confidence_byte_is_the_nearest_to_what_it_means(byte: int) -> None:
    assert confidence_byte(confidence(byte)) == byte
