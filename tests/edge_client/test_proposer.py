from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draftwire.edge_client.proposer import Proposer
from draftwire.protocol.acceptance import Proposal, verify_block
from draftwire.protocol.clock import confidence_byte
from draftwire.protocol.errors import NonFiniteLogitsError
from draftwire.protocol.noise import Domain, gumbel, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, probabilities, process_logits
from draftwire.protocol.sparse_q import SparseQ
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

PROMPT = [1, 2, 3]
CUTS: list[dict[str, Any]] = [
    {},
    {"top_k": 20},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01},
]
HISTORIES: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.7, "frequency_penalty": 0.4},
    {"logit_bias": ((3, 4.0), (5, -100.0))},
]


def row(seed: int, size: int = 500, scale: float = 1.5) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


def propose(logits: NDArray[np.float32], params: SamplingParams, tokens: list[int], seed: int = 9) -> Proposal:
    proposal, confidence = Proposer(params, seed=seed, prompt_length=len(PROMPT)).propose(logits, tokens)
    assert 0 <= confidence <= 255
    return proposal


def committed(logits: NDArray[np.float32], params: SamplingParams, tokens: list[int], seed: int = 9) -> int:
    """What the verifier commits there."""
    verdict = verify_block(
        logits[None],
        [],
        params=params,
        history=TokenHistory(tokens[: len(PROMPT)], tokens[len(PROMPT) :]),
        seed=seed,
        position=len(tokens),
        budget=1,
    )
    return verdict.tokens[0]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("history", HISTORIES)
def test_with_the_targets_logits_it_proposes_what_the_target_commits(
    temperature: float, cut: dict[str, Any], history: dict[str, Any]
) -> None:
    params = SamplingParams(temperature=temperature, **cut, **history)
    for seed in range(60):
        logits, tokens = row(seed), [*PROMPT, 5, 7, 5, seed]
        assert propose(logits, params, tokens, seed).token == committed(logits, params, tokens, seed)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    table=st.integers(0, 1000),
    scale=st.floats(0.1, 1.5),
    temperature=st.floats(0.5, 3),
    top_k=st.sampled_from([0, 1, 5, 100]),
    top_p=st.floats(0.05, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    answer=st.lists(st.integers(0, 199), max_size=10),
)
def test_any_parameters(seed: int, table: int, scale: float, answer: list[int], **options: Any) -> None:
    """Rows whose every token lies within the device's reach: proposal and commit are one and the same."""
    logits, params = row(table, 200, scale), SamplingParams(**options)
    tokens = PROMPT + answer
    assert propose(logits, params, tokens, seed).token == committed(logits, params, tokens, seed)


@pytest.mark.parametrize("cut", CUTS)
def test_over_a_large_vocabulary_leaving_out_the_tail_hardly_ever_matters(cut: dict[str, Any]) -> None:
    """The device draws among tokens within 12 nats of the best; the target's choice is hardly ever outside."""
    params = SamplingParams(temperature=0.7, **cut)
    differs = 0
    for seed in range(300):
        logits = row(seed, 20_000, 3.0)
        differs += propose(logits, params, PROMPT, seed).token != committed(logits, params, PROMPT, seed)
    assert differs <= 3


def test_cut_off_logits_are_never_proposed() -> None:
    logits = row(1)
    logits[50:] = -np.inf
    for params in (
        SamplingParams(),
        SamplingParams(temperature=5.0),
        SamplingParams(temperature=5.0, mode="rejection"),
    ):
        assert all(propose(logits, params, PROMPT, seed).token < 50 for seed in range(50))


# --- rejection ----------------------------------------------------------------------------------------------------


def test_by_rejection_it_samples_from_the_q_that_it_sends() -> None:
    params = SamplingParams(temperature=1.0, mode="rejection", top_k=20)
    logits = row(4, 30, 1.0)
    q = SparseQ.from_scores(process_logits(logits, params, TokenHistory()), 8)
    drawn = []
    for seed in range(4000):
        proposal = propose(logits, params, PROMPT, seed)
        assert proposal.q == q
        assert proposal.token == q.sample(uniform(seed, len(PROMPT), Domain.DRAFT))
        drawn.append(proposal.token)
    p = q.dense(30)
    counts = np.bincount(drawn, minlength=30)
    assert counts[p == 0].sum() == 0
    assert stats.chisquare(counts[p > 0], 4000 * p[p > 0]).pvalue > 1e-5


def test_only_rejection_carries_a_q() -> None:
    assert propose(row(1), SamplingParams(), PROMPT).q is None
    assert propose(row(1), SamplingParams(temperature=1.0), PROMPT).q is None
    assert propose(row(1), SamplingParams(mode="rejection"), PROMPT).q is None  # greedy


def test_penalties_shape_q() -> None:
    logits = np.full(40, -20.0, dtype=np.float32)
    logits[[7, 8]] = 2.0
    params = SamplingParams(temperature=0.1, mode="rejection", presence_penalty=2.0)
    proposal = propose(logits, params, [*PROMPT, 7])
    assert proposal.q == SparseQ((8,), (255,))


# --- confidence, and rows that are not finite -----------------------------------------------------------------------


def test_greedy_confidence_is_the_drafts_probability() -> None:
    for seed in range(50):
        logits = row(seed)
        proposal, confidence = Proposer(SamplingParams(), seed=seed, prompt_length=3).propose(logits, PROMPT)
        p = probabilities(process_logits(logits, SamplingParams(temperature=1.0), TokenHistory()))
        assert abs(confidence - confidence_byte(float(p[proposal.token]))) <= 1


@pytest.mark.parametrize("temperature", [0.7, 2.0])
def test_coupled_confidence_is_the_winners_share_of_scores_with_noise(temperature: float) -> None:
    """A rare token that wins by far is as sure as a frequent one; the noise is part of what decides."""
    params = SamplingParams(temperature=temperature)
    for seed in range(50):
        logits = row(seed)
        proposal, confidence = Proposer(params, seed=seed, prompt_length=3).propose(logits, PROMPT)
        scores = process_logits(logits, params, TokenHistory())
        share = probabilities(scores + gumbel(seed, len(PROMPT), np.arange(len(scores))))
        assert proposal.token == int(share.argmax())
        assert abs(confidence - confidence_byte(float(share[proposal.token]))) <= 1


def test_confidence_by_rejection_is_q() -> None:
    params = SamplingParams(temperature=1.0, mode="rejection")
    proposal, confidence = Proposer(params, seed=1, prompt_length=3).propose(row(1), PROMPT)
    assert proposal.q is not None
    assert confidence == confidence_byte(proposal.q.probability(proposal.token))


def test_an_extreme_row_makes_no_warning() -> None:
    logits = np.full(100, -1e30, dtype=np.float32)
    logits[3] = 1e30
    for params in (
        SamplingParams(),
        SamplingParams(temperature=0.01),
        SamplingParams(temperature=1.0, mode="rejection"),
    ):
        proposal, confidence = Proposer(params, seed=1, prompt_length=3).propose(logits, PROMPT)
        assert (proposal.token, confidence) == (3, 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_p=0.5),
        SamplingParams(temperature=1.0, mode="rejection"),
        SamplingParams(temperature=1.0, repetition_penalty=2.0),
    ],
)
def test_rows_that_are_not_finite_are_refused(bad: float, params: SamplingParams) -> None:
    logits = row(1)
    logits[200] = bad
    with pytest.raises(NonFiniteLogitsError):
        propose(logits, params, PROMPT)
    with pytest.raises(NonFiniteLogitsError):
        propose(np.full(10, -np.inf, dtype=np.float32), params, PROMPT)


def test_the_seed_and_the_position_decide() -> None:
    params, logits = SamplingParams(temperature=2.0), row(2)
    assert len({propose(logits, params, PROMPT, seed).token for seed in range(20)}) > 5
    assert len({propose(logits, params, PROMPT + [0] * length).token for length in range(20)}) > 5
    assert propose(logits, replace(params), PROMPT) == propose(logits, params, PROMPT)
