from __future__ import annotations

import pytest
from draftwire.edge_client.bench.spread import Spread, median_interval, percentile


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([3.0], 0.99, 3.0), ([4.0, 1.0], 0.5, 2.5), ([1.0, 2.0, 3.0, 4.0, 5.0], 0.95, 4.8)],
)
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_spread_of_one_value_is_that_value() -> None:
    assert Spread.of([1.5]) == Spread(1, 1.5, 1.5, 1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("count", "expected"),
    # Textbook ranks for 95%: none to leave out below six values, then 1 and 6, 2 and 9, 6 and 15, 18 and 33.
    [(1, (1, 1)), (5, (1, 5)), (6, (1, 6)), (8, (1, 8)), (10, (2, 9)), (20, (6, 15)), (50, (18, 33))],
)
def test_between_which_values_the_median_lies(count: int, expected: tuple[int, int]) -> None:
    assert median_interval([float(value) for value in range(count, 0, -1)]) == expected
