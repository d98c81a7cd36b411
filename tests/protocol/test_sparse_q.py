from __future__ import annotations

import numpy as np
import pytest
from draftwire.protocol.errors import InvalidParameterError, NonFiniteLogitsError
from draftwire.protocol.sparse_q import MAX_SUPPORT, SparseQ
from hypothesis import given
from hypothesis import strategies as st


def test_probabilities_are_weight_over_total() -> None:
    q = SparseQ((2, 5, 9), (1, 255, 44))
    assert q.probability(5) == 255 / 300
    assert q.probability(3) == 0.0
    assert q.probability(10) == 0.0
    assert q.dense(10).tolist() == [0, 0, 1 / 300, 0, 0, 255 / 300, 0, 0, 0, 44 / 300]


def test_from_scores_quantizes_and_drops_zeros() -> None:
    scores = np.log(np.array([0.4, 0.2, 0.0004, 0.0, 0.1], dtype=np.float64) + 1e-300)
    assert SparseQ.from_scores(scores, 4) == SparseQ((0, 1, 4), (255, 128, 64))
    assert SparseQ.from_scores(scores, 2) == SparseQ((0, 1), (255, 128))
    assert SparseQ.from_scores(np.array([-np.inf, 3.0, -np.inf], dtype=np.float32), 3) == SparseQ((1,), (255,))


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=200), st.integers(1, MAX_SUPPORT))
def test_from_scores_keeps_the_best(scores: list[float], top_k: int) -> None:
    q = SparseQ.from_scores(np.array(scores, dtype=np.float32), top_k)
    assert max(q.weights) == 255
    assert len(q.ids) <= min(top_k, len(scores))
    best = [weight for token, weight in zip(q.ids, q.weights, strict=True) if scores[token] == max(scores)]
    assert best
    assert set(best) == {255}
    assert q.dense(len(scores)).sum() == pytest.approx(1.0)


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_from_scores_refuses_what_is_not_finite(bad: list[float]) -> None:
    with pytest.raises(NonFiniteLogitsError):
        SparseQ.from_scores(np.array(bad), 2)


def test_sample_is_inverse_cdf_in_the_order_of_ids() -> None:
    q = SparseQ((3, 7, 8), (50, 100, 50))
    assert [q.sample(u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.999999)] == [3, 3, 7, 7, 8, 8]
    assert q.sample(np.nextafter(1.0, 0.0)) == 8


def test_sampling_a_fine_grid_gives_exactly_q() -> None:
    q = SparseQ((1, 4, 6, 20), (255, 3, 17, 1))
    grid = [q.sample((index + 0.5) / q.total) for index in range(q.total)]
    assert [grid.count(token) for token in q.ids] == list(q.weights)


@pytest.mark.parametrize("uniform", [-0.1, 1.0, float("nan")])
def test_sample_refuses(uniform: float) -> None:
    with pytest.raises(InvalidParameterError, match="uniform"):
        SparseQ((1,), (1,)).sample(uniform)


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ((), ()),
        ((1, 2), (1,)),
        ((2, 1), (1, 1)),
        ((1, 1), (1, 1)),
        ((-1,), (1,)),
        ((1 << 31,), (1,)),
        ((1,), (0,)),
        ((1,), (256,)),
        ((1.0,), (1,)),
        (tuple(range(MAX_SUPPORT + 1)), (1,) * (MAX_SUPPORT + 1)),
    ],
)
def test_refused(ids: tuple[int, ...], weights: tuple[int, ...]) -> None:
    with pytest.raises(InvalidParameterError, match="sparse_q"):
        SparseQ(ids, weights)


def test_dense_refuses_a_vocabulary_too_small() -> None:
    with pytest.raises(InvalidParameterError, match="outside"):
        SparseQ((9,), (1,)).dense(9)


@pytest.mark.parametrize("top_k", [0, -1, MAX_SUPPORT + 1])
def test_top_k_range(top_k: int) -> None:
    with pytest.raises(InvalidParameterError, match="top_k"):
        SparseQ.from_scores(np.zeros(4), top_k)
