from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from draftwire.edge_client.bench.first_token import FirstToken
from draftwire.edge_client.bench.measure import Answer

Maker = Callable[..., Answer]


def first_after(answer: Answer, seconds: float) -> Answer:
    return replace(answer, stats=replace(answer.stats, ttft_seconds=seconds))


def test_pairs_count_in_either_order(plain: Maker, drafted: Maker) -> None:
    pairs = [(0.1, 0.11), (0.2, 0.2), (0.4, 0.6)]
    answers: list[Answer] = []
    for number, (alone, with_draft) in enumerate(pairs):
        pair = [first_after(plain(), alone), first_after(drafted(), with_draft)]
        answers += pair if number % 2 else pair[::-1]
    found = FirstToken.of(answers)
    assert (found.pairs, found.cloud_only_ms, found.draftwire_ms) == (3, 200, 200)
    assert found.ratio == pytest.approx(1.1)
    assert (found.low_quartile, found.high_quartile) == pytest.approx((1.05, 1.3))
    assert (found.low, found.high) == pytest.approx((1.0, 1.5))
