from __future__ import annotations

import math
import random
from typing import Any

import pytest
from draftwire.protocol.calibration import Calibration
from draftwire.protocol.clock import confidence, confidence_byte


def test_a_new_one_believes_the_draft_in_good_measure() -> None:
    chances = [Calibration().probability(byte) for byte in range(256)]
    assert all(0.0 < chance < 1.0 for chance in chances)
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > 0.95
    assert chances[255] < 0.3


@pytest.mark.parametrize("right", [0.2, 0.6, 0.95])
def test_it_learns_what_a_confidence_is_worth(right: float) -> None:
    calibration, rng = Calibration(), random.Random(3)
    for _ in range(1000):
        calibration.record(20, rng.random() < right)
    assert calibration.probability(20) == pytest.approx(right, abs=0.15)


def test_each_confidence_is_judged_by_itself() -> None:
    calibration = Calibration()
    before = calibration.probability(60)
    for _ in range(200):
        calibration.record(0, False)
    assert calibration.probability(0) < 0.05
    assert calibration.probability(60) == before


def test_neighbours_are_judged_together() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.record(16, True)
    assert calibration.probability(15) == calibration.probability(16) == calibration.probability(22)
    assert calibration.probability(14) != calibration.probability(15)


def test_it_forgets() -> None:
    calibration = Calibration()
    for _ in range(1000):
        calibration.record(0, True)
    for _ in range(150):
        calibration.record(0, False)
    assert calibration.probability(0) < 0.2


def test_survival_is_the_chance_of_all_together() -> None:
    calibration = Calibration()
    path = [0, 20, 3, 255]
    assert calibration.survival(path) == [
        pytest.approx(math.prod(calibration.probability(byte) for byte in path[: count + 1])) for count in range(4)
    ]
    assert calibration.survival([]) == []


def test_it_is_kept_and_found_again() -> None:
    calibration, rng = Calibration(), random.Random(1)
    for _ in range(500):
        byte = confidence_byte(rng.random())
        calibration.record(byte, rng.random() < confidence(byte))
    again = Calibration.load(calibration.dump())
    assert [again.probability(byte) for byte in range(256)] == [calibration.probability(byte) for byte in range(256)]
    again.record(0, False)
    assert again.probability(0) != calibration.probability(0)


BINS = Calibration().dump()


@pytest.mark.parametrize(
    "bins",
    [
        [],
        BINS[1:],
        [*BINS, [1.0, 2.0]],
        [[2.0, 1.0], *BINS[1:]],
        [[-1.0, 1.0], *BINS[1:]],
        [[math.nan, 1.0], *BINS[1:]],
        [[math.inf, math.inf], *BINS[1:]],
        [[1.0], *BINS[1:]],
        [["many", 1.0], *BINS[1:]],
        [None, *BINS[1:]],
        None,
        {"bins": BINS},
    ],
)
def test_what_was_not_dumped_is_not_loaded(bins: Any) -> None:
    with pytest.raises(ValueError, match="not the bins"):
        Calibration.load(bins)


def test_an_empty_bin_is_loaded_without_harm() -> None:
    assert Calibration.load([[0.0, 0.0], *BINS[1:]]).probability(0) == 0.0
