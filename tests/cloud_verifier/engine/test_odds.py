from __future__ import annotations

import pytest
from draftwire.cloud_verifier.engine.odds import Odds, confidence_of
from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.sparse_q import SparseQ


def test_what_was_right_lately_counts() -> None:
    odds = Odds()
    assert odds.hit == pytest.approx(0.7)
    for _ in range(200):
        odds.record(0, False)
    assert odds.hit < 0.02
    for _ in range(200):
        odds.record(0, True)
    assert odds.hit > 0.98


def test_a_path_survives_as_far_as_all_its_tokens_are_right() -> None:
    odds = Odds()
    for _ in range(300):
        odds.record(0, True)
        odds.record(40, False)
    sure, doubtful, again = odds.survival([0, 40, 0])
    assert sure > 0.95
    assert doubtful < 0.05
    assert again <= doubtful


def test_a_distribution_says_how_sure_the_draft_was() -> None:
    assert confidence_of(Proposal(5, SparseQ((5, 6), (1, 1)))) == 16
    assert confidence_of(Proposal(5)) == 0
