"""Each acceptance rule commits exactly what the target alone would, and the test would notice if it did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from draftwire.protocol import acceptance
from draftwire.protocol.acceptance import (
    Draw,
    Proposal,
    Rule,
    commit_coupled,
    commit_greedy,
    commit_rejection,
    rule_for,
    verify_block,
)
from draftwire.protocol.noise import Domain, coupled_choice, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, probabilities, process_logits
from draftwire.protocol.sparse_q import SparseQ
from numpy.typing import NDArray
from scipy import stats

Logits = NDArray[np.float64]
Draft = Callable[[int, int, SamplingParams, int], Proposal]
"""``draft(before, position, params, seed)`` proposes the token that follows ``before``."""

V, POSITION, START = 8, 50, 3
TABLE: Logits = np.random.default_rng(6).standard_normal((V, V)) * 1.2  # row t: logits of the token after t
PLAIN = TokenHistory()


# --- drafts, and the walk over two positions ------------------------------------------------------------------------


def drafted(table: Logits, before: int, position: int, params: SamplingParams, seed: int, support: int) -> Proposal:
    """What a device with the model ``table`` proposes."""
    scores = process_logits(table[before], params, PLAIN)
    if params.mode == "coupled":
        return Proposal(coupled_choice(scores, seed, position))
    q = SparseQ.from_scores(scores, support)
    return Proposal(q.sample(uniform(seed, position, Domain.DRAFT)), q)


def right(before: int, position: int, params: SamplingParams, seed: int) -> Proposal:
    return drafted(TABLE, before, position, params, seed, 8)


def wrong(before: int, position: int, params: SamplingParams, seed: int) -> Proposal:
    return drafted(-TABLE, before, position, params, seed, 3)


def one_hot(before: int, position: int, params: SamplingParams, seed: int) -> Proposal:
    del position, params, seed
    return Proposal((before + 1) % V)


def two_tokens(draft: Draft, params: SamplingParams, seed: int) -> tuple[int, int, int]:
    """Commit two tokens after START with blocks of up to two proposals. Returns them and how many were accepted."""
    first = draft(START, POSITION, params, seed)
    second = draft(first.token, POSITION + 1, params, seed)
    options: dict[str, Any] = {"params": params, "history": TokenHistory(), "seed": seed}
    rows = TABLE[[START, first.token, second.token]]
    verdict = verify_block(rows, [first, second], position=POSITION, budget=2, **options)
    if len(verdict.tokens) == 2:
        return (*verdict.tokens, verdict.accepted)  # type: ignore[return-value]
    (token,) = verdict.tokens
    again = draft(token, POSITION + 1, params, seed)
    rest = verify_block(TABLE[[token, again.token]], [again], position=POSITION + 1, budget=1, **options)
    return token, rest.tokens[0], verdict.accepted + rest.accepted


def exact_pairs(params: SamplingParams) -> Logits:
    """[V, V] the probability of each pair of tokens after START, by the target alone."""
    p = np.stack([probabilities(process_logits(row, params, PLAIN)) for row in TABLE])
    pairs: Logits = p[START][:, None] * p
    return pairs


def p_value(counts: NDArray[Any], p: Logits) -> float:
    """Chi-squared of ``counts`` against ``p``; 0 when something impossible happened. Rare cells are put together."""
    counts, p = counts.ravel(), p.ravel()
    if counts[p <= 0].sum():
        return 0.0
    expected = p * counts.sum()
    common = expected >= 5
    observed, wanted = counts[common], expected[common]
    if expected[~common].sum() > 0:
        observed = np.append(observed, counts[~common].sum())
        wanted = np.append(wanted, expected[~common].sum())
    if len(wanted) == 1:
        return 1.0
    return float(stats.chisquare(observed, wanted).pvalue)


def pair_counts(draft: Draft, params: SamplingParams, seeds: int) -> tuple[NDArray[np.int64], int]:
    counts, accepted = np.zeros((V, V), dtype=np.int64), 0
    for seed in range(seeds):
        first, second, passed = two_tokens(draft, params, seed)
        counts[first, second] += 1
        accepted += passed
    return counts, accepted


SETTINGS = [
    {"temperature": temperature, **cut}
    for temperature in (0.7, 1.3)
    for cut in ({}, {"top_k": 4}, {"top_p": 0.8}, {"top_k": 5, "top_p": 0.9, "min_p": 0.05})
]


@pytest.mark.parametrize("options", SETTINGS)
@pytest.mark.parametrize("draft", [right, wrong, one_hot])
def test_rejection_commits_pairs_of_the_targets_distribution(draft: Draft, options: dict[str, Any]) -> None:
    params = SamplingParams(mode="rejection", **options)
    counts, accepted = pair_counts(draft, params, 2000)
    assert p_value(counts, exact_pairs(params)) > 1e-5
    assert accepted > 0.9 * 4000 or draft is not right


@pytest.mark.parametrize("options", SETTINGS)
def test_coupled_commits_pairs_of_the_targets_distribution(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    counts, accepted = pair_counts(right, params, 3000)
    assert p_value(counts, exact_pairs(params)) > 1e-5
    assert accepted == 6000


@pytest.mark.parametrize("options", SETTINGS)
def test_coupled_is_a_function_of_seed_and_target(options: dict[str, Any]) -> None:
    params = SamplingParams(**options)
    for seed in range(200):
        pairs = {two_tokens(draft, params, seed)[:2] for draft in (right, wrong, one_hot)}
        assert len(pairs) == 1


@pytest.mark.parametrize("draft", [right, wrong, one_hot])
def test_greedy_commits_the_argmax(draft: Draft) -> None:
    first = int(TABLE[START].argmax())
    assert two_tokens(draft, SamplingParams(), 5)[:2] == (first, int(TABLE[first].argmax()))


# --- negative controls: the same test must catch a rule that is broken ----------------------------------------------


def rejection_with(
    *,
    accepts: Callable[[float, float, float], bool] = lambda u, p, q: u * q < p,
    residual: Callable[[Logits, Logits], Logits] = lambda p, q: np.maximum(p - q, 0),
    accept_domain: Domain = Domain.ACCEPT,
    residual_domain: Domain = Domain.RESIDUAL,
) -> Rule:
    """The rejection rule written down a second time, so that one part of it can be broken."""

    def rule(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
        p = probabilities(process_logits(logits, draw.params, draw.history))
        if proposal is None:
            return pick(p, uniform(draw.seed, draw.position, Domain.BONUS))
        sparse = proposal.q or SparseQ((proposal.token,), (1,))
        q = sparse.dense(len(p))
        token = proposal.token
        if accepts(uniform(draw.seed, draw.position, accept_domain), float(p[token]), float(q[token])):
            return token
        rest = residual(p, q)
        return pick(rest if rest.any() else p, uniform(draw.seed, draw.position, residual_domain))

    return rule


def pick(weights: Logits, u: float) -> int:
    edges = np.cumsum(weights)
    return int(np.argmax(edges > u * edges[-1]))


BROKEN: dict[str, Rule] = {
    "accepts by q/p": rejection_with(accepts=lambda u, p, q: u * p < q),
    "accepts whatever the target allows": rejection_with(accepts=lambda *upq: upq[1] > 0),
    "accepts by p alone": rejection_with(accepts=lambda *upq: upq[0] < upq[1]),
    "draws again from p": rejection_with(residual=lambda *pq: pq[0]),
    "residual by the absolute difference": rejection_with(residual=lambda p, q: np.abs(p - q)),
    "residual never the proposal": rejection_with(residual=lambda p, q: np.where(q > 0, 0, p)),
    "residual uses the number that rejected": rejection_with(residual_domain=Domain.ACCEPT),
    "acceptance uses the number that drafted": rejection_with(accept_domain=Domain.DRAFT),
}


def doubtful(before: int, position: int, params: SamplingParams, seed: int) -> Proposal:
    """A draft with a full q that is often wrong, so that acceptance and residual both matter."""
    return drafted(-0.3 * TABLE, before, position, params, seed, 8)


def certain(before: int, position: int, params: SamplingParams, seed: int) -> Proposal:
    """A draft that always says what the target likes best."""
    del position, params, seed
    return Proposal(int(TABLE[before].argmax()))


def worst_p_value(rule: Rule, seeds: int = 6000) -> float:
    """The least p-value of what ``rule`` commits after START, by draft."""
    params = SamplingParams(mode="rejection", temperature=0.7)
    p = probabilities(process_logits(TABLE[START], params, PLAIN))
    found = []
    for draft in (doubtful, certain):
        tokens = []
        for seed in range(seeds):
            draw = Draw(params=params, history=PLAIN, seed=seed, position=POSITION)
            tokens.append(rule(TABLE[START], draft(START, POSITION, params, seed), draw))
        found.append(p_value(np.bincount(tokens, minlength=V), p))
    return min(found)


@pytest.mark.parametrize("temperature", [0.7, 1.3])
def test_the_second_writing_of_the_rule_is_the_rule(temperature: float) -> None:
    params = SamplingParams(mode="rejection", temperature=temperature)
    for seed in range(500):
        draw = Draw(params=params, history=PLAIN, seed=seed, position=POSITION)
        for proposal in (doubtful(START, POSITION, params, seed), wrong(START, POSITION, params, seed), None):
            assert commit_rejection(TABLE[START], proposal, draw) == rejection_with()(TABLE[START], proposal, draw)


def test_the_rule_passes_where_broken_ones_fail() -> None:
    assert worst_p_value(commit_rejection) > 1e-5


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_caught(name: str) -> None:
    assert worst_p_value(BROKEN[name]) < 1e-6


def test_noise_used_at_two_positions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each position alone looks right; only pairs give it away."""
    params = SamplingParams(temperature=1.3)

    def careless(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
        del proposal
        return coupled_choice(process_logits(logits, draw.params, draw.history), draw.seed, 0)

    monkeypatch.setattr(acceptance, "commit_coupled", careless)
    counts, _ = pair_counts(one_hot, params, 3000)
    exact = exact_pairs(params)
    assert p_value(counts.sum(axis=1), exact.sum(axis=1)) > 1e-5
    assert p_value(counts, exact) < 1e-6


def test_a_forgotten_temperature_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
        del proposal
        return coupled_choice(np.asarray(logits, dtype=np.float64), draw.seed, draw.position)

    monkeypatch.setattr(acceptance, "commit_coupled", careless)
    params = SamplingParams(temperature=1.3)
    assert p_value(pair_counts(one_hot, params, 3000)[0], exact_pairs(params)) < 1e-6


# --- rejection, case by case ----------------------------------------------------------------------------------------


def draw_at(seed: int, **options: Any) -> Draw:
    params = SamplingParams(mode="rejection", temperature=1.0, **options)
    return Draw(params=params, history=PLAIN, seed=seed, position=9)


def test_equal_distributions_always_accept() -> None:
    q = SparseQ((1, 2, 5), (255, 100, 3))
    logits = np.log(np.maximum(q.dense(V), 1e-300))
    for seed in range(3000):
        token = q.ids[seed % 3]
        assert commit_rejection(logits, Proposal(token, q), draw_at(seed)) == token


def test_a_proposal_the_target_cannot_draw_is_never_accepted() -> None:
    q = SparseQ((0, 1), (255, 255))
    logits = np.array([-np.inf, 0.0, 0.0, 0.0])
    counts = np.bincount([commit_rejection(logits, Proposal(0, q), draw_at(seed)) for seed in range(3000)], minlength=4)
    assert counts[0] == 0
    assert p_value(counts, np.array([0, 0, 0.5, 0.5])) > 1e-5  # what q already covers of token 1 is no residual


def test_a_residual_without_mass_is_p() -> None:
    """p = q everywhere, yet the proposal fails: it lies outside both."""
    q = SparseQ((0, 1), (1, 1))
    logits = np.array([0.0, 0.0, -np.inf])
    counts = np.bincount([commit_rejection(logits, Proposal(2, q), draw_at(seed)) for seed in range(2000)], minlength=3)
    assert p_value(counts, np.array([0.5, 0.5, 0.0])) > 1e-5


def test_no_proposal_draws_from_p() -> None:
    logits = TABLE[START]
    counts = np.bincount([commit_rejection(logits, None, draw_at(seed)) for seed in range(4000)], minlength=V)
    assert p_value(counts, probabilities(logits)) > 1e-5


@pytest.mark.parametrize("u", [2.0**-53, 0.25, 0.5, 1 - 2.0**-53])
def test_the_inverse_cdf_never_gives_what_has_no_weight(u: float) -> None:
    assert acceptance._inverse_cdf(np.array([0.0, 0.0, 0.3, 0.0, 1e-300, 0.0, 0.0]), u) in (2, 4)
    expected = 1 if u < 0.25 else 3 if u < 0.5 else 4
    assert acceptance._inverse_cdf(np.array([0.0, 0.25, 0.0, 0.25, 0.5, 0.0]), u) == expected
    assert acceptance._inverse_cdf(np.full(49_152, 0.1), u) == min(int(u * 49_152), 49_151)


def test_rules_by_parameters() -> None:
    assert rule_for(SamplingParams()) is commit_greedy
    assert rule_for(SamplingParams(mode="rejection", temperature=1e-9)) is commit_greedy
    assert rule_for(SamplingParams(temperature=1)) is commit_coupled
    assert rule_for(SamplingParams(temperature=1, mode="rejection")) is commit_rejection
