"""When to try again, on a clock that the test moves."""

from __future__ import annotations

import random

import pytest
from draftwire.edge_client.backoff import Backoff
from hypothesis import given
from hypothesis import strategies as st


def backoff_of(*, draw: float = 1.0, budget: float = 1000.0, cap: float = 5.0) -> Backoff:
    backoff = Backoff(draw=lambda: draw, cap=cap)
    backoff.begin(100.0, budget)
    return backoff


def test_the_longest_waits_double_up_to_the_cap() -> None:
    backoff = backoff_of()
    assert [backoff.next_wait(100.0) for _ in range(8)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


@pytest.mark.parametrize("draw", [0.0, 0.25, 1.0])
def test_the_jitter_is_full(draw: float) -> None:
    backoff = backoff_of(draw=draw)
    assert [backoff.next_wait(100.0) for _ in range(3)] == pytest.approx([0.1 * draw, 0.2 * draw, 0.4 * draw])


def test_two_clients_do_not_come_back_together() -> None:
    waits = []
    for seed in range(2):
        backoff = Backoff(draw=random.Random(seed).random)
        backoff.begin(0.0, 30.0)
        waits.append([backoff.next_wait(0.0) for _ in range(5)])
    assert all(one != other for one, other in zip(*waits, strict=True))


def test_what_the_other_end_asks_for_is_the_least_and_jittered_too() -> None:
    assert backoff_of(draw=0.0).next_wait(100.0, at_least=7.0) == 7.0
    assert backoff_of(draw=0.5).next_wait(100.0, at_least=7.0) == pytest.approx(7.05)


def test_the_last_wait_ends_with_the_budget() -> None:
    backoff = backoff_of(budget=0.25)
    assert backoff.next_wait(100.0) == pytest.approx(0.1)
    assert backoff.next_wait(100.1) == pytest.approx(0.15)
    assert backoff.next_wait(100.25) is None


def test_there_is_no_point_in_a_wait_beyond_the_budget() -> None:
    backoff = backoff_of(budget=10.0)
    assert backoff.next_wait(101.0, at_least=9.0) is None
    assert backoff.next_wait(101.0, at_least=8.9) == pytest.approx(9.0)


def test_no_budget_no_wait() -> None:
    assert backoff_of(budget=0.0).next_wait(100.0) is None
    assert Backoff().next_wait(0.0) is None


def test_a_new_budget_keeps_the_spacing_and_a_reset_does_not() -> None:
    backoff = backoff_of()
    for _ in range(3):
        backoff.next_wait(100.0)
    backoff.begin(500.0, 30.0)
    assert backoff.next_wait(500.0) == pytest.approx(0.8)
    backoff.reset()
    assert not backoff.begun
    assert backoff.next_wait(500.0) is None
    backoff.begin(600.0, 30.0)
    assert backoff.begun
    assert backoff.next_wait(600.0) == pytest.approx(0.1)


@given(
    budget=st.floats(0.0, 100.0),
    draws=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=200),
    asked=st.floats(0.0, 3.0),
)
def test_whoever_obeys_stays_within_the_budget(budget: float, draws: list[float], asked: float) -> None:
    drawn = iter(draws)
    backoff, now = Backoff(draw=lambda: next(drawn)), 50.0
    backoff.begin(now, budget)
    for _ in draws:
        wait = backoff.next_wait(now, at_least=asked)
        if wait is None:
            return
        assert asked <= wait <= asked + backoff.cap
        now += wait
        assert now <= 50.0 + budget + 1e-6
