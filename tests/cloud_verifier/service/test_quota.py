"""Rates on a clock that is set by hand."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.service.quota import Buckets, TokenBucket, capacity
from hypothesis import given
from hypothesis import strategies as st


class Clock:
    """Tells what it is set to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_minutes_worth_at_once_then_one_at_a_time() -> None:
    bucket = TokenBucket.full(6.0, now=0.0)
    assert [bucket.take(0.0) for _ in range(6)] == [0.0] * 6
    assert bucket.take(0.0) == pytest.approx(10.0)
    assert bucket.take(4.0) == pytest.approx(6.0)
    assert bucket.take(10.0) == 0.0
    assert bucket.take(10.0) == pytest.approx(10.0)


def test_several_are_taken_together_or_not_at_all() -> None:
    buckets = Buckets(most=1, clock=lambda: 0.0)
    assert buckets.take("a", 6.0, count=4) == 0.0
    assert buckets.take("a", 6.0, count=4) == pytest.approx(20.0)
    assert buckets.take("a", 6.0, count=2) == 0.0
    assert buckets.take("a", 6.0) == pytest.approx(10.0)
    assert [capacity(rate) for rate in (0.5, 1.0, 6.5)] == [1.0, 1.0, 6.5]


def test_less_than_one_a_minute() -> None:
    bucket = TokenBucket.full(0.5, now=0.0)
    assert bucket.take(0.0) == 0.0
    assert bucket.take(60.0) == pytest.approx(60.0)
    assert bucket.take(120.0) == 0.0


@given(
    st.floats(0.1, 1000.0),
    st.lists(st.floats(0.0, 30.0), max_size=60),
)
def test_no_more_than_the_rate_allows_and_the_wait_is_true(rate: float, gaps: list[float]) -> None:
    bucket, now = TokenBucket.full(rate, now=0.0), 0.0
    for taken, gap in enumerate(gaps, 1):
        now += gap
        wait = bucket.take(now)
        if wait:
            assert bucket.take(now + wait * 0.99) > 0.0
            now += wait * (1 + 1e-9) + 1e-9
            assert bucket.take(now) == 0.0
        assert taken <= max(1.0, rate) + rate * now / 60.0 + 1e-6


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket.full(60.0, now=10.0)
    for _ in range(60):
        assert bucket.take(10.0) == 0.0
    assert bucket.take(0.0) == pytest.approx(1.0)
    assert bucket.take(10.0) > 0.0


def test_names_do_not_touch_one_another_and_a_rate_may_change() -> None:
    clock = Clock()
    buckets = Buckets(most=10, clock=clock)
    assert buckets.take("a", 1.0) == 0.0
    assert buckets.take("a", 1.0) > 0.0
    assert buckets.take("b", 1.0) == 0.0
    clock.now += 1.0
    assert buckets.take("a", 120.0) == 0.0
    assert buckets.take("a", None) == 0.0


def test_only_so_many_are_remembered_the_least_recent_forgotten() -> None:
    buckets = Buckets(most=3, clock=Clock())
    for name in ("a", "b", "c"):
        assert buckets.take(name, 1.0) == 0.0
    assert buckets.take("a", 1.0) > 0.0  # used again, so "b" is the oldest
    for number in range(1000):
        buckets.take(f"flood{number}", 1.0)
        assert len(buckets) <= 3
        assert buckets.take("a", 1.0) > 0.0
    assert buckets.take("b", 1.0) == 0.0
