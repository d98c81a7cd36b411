"""The walk over a block: what it commits, where it ends, and what it leaves in the history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draftwire.protocol.acceptance import Proposal, Verdict, verify_block
from draftwire.protocol.errors import NonFiniteLogitsError
from draftwire.protocol.noise import Domain, coupled_choice, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, greedy_token, probabilities, process_logits
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

V, START = 8, 3
TABLE = np.random.default_rng(6).standard_normal((V, V)) * 1.2  # row t: logits of the token after t


def chain(count: int, first: int = START) -> list[int]:
    """The greedy continuation of ``first``."""
    tokens = [first]
    for _ in range(count):
        tokens.append(int(TABLE[tokens[-1]].argmax()))
    return tokens[1:]


def walk(proposed: Sequence[int], **options: Any) -> Verdict:
    rows = TABLE[[START, *proposed]]
    defaults: dict[str, Any] = {"params": SamplingParams(), "history": TokenHistory(), "seed": 0, "position": 1}
    return verify_block(rows, [Proposal(token) for token in proposed], **{**defaults, "budget": 99, **options})


def test_all_pass_and_a_bonus_follows() -> None:
    assert walk(chain(4)) == Verdict(tuple(chain(5)), 4)


def test_the_first_disagreement_ends_the_block() -> None:
    good = chain(4)
    bad = [*good[:2], (good[2] + 1) % V, good[3]]
    assert walk(bad) == Verdict(tuple(good[:3]), 2)


def test_without_proposals_one_token_is_committed() -> None:
    assert walk([]) == Verdict(tuple(chain(1)), 0)


@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 6])
def test_the_budget_cuts(budget: int) -> None:
    verdict = walk(chain(4), budget=budget)
    assert verdict == Verdict(tuple(chain(5)[:budget]), min(budget, 4))


@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_stop_id_ends_the_block_where_it_stands(at: int) -> None:
    table = np.full((V, V), -1.0)
    table[np.arange(V), (np.arange(V) + 1) % V] = 1.0  # the chain counts: 4, 5, 6, 7, 0
    proposed = [(START + 1 + index) % V for index in range(4)]
    stop = (START + 1 + at) % V
    verdict = verify_block(
        table[[START, *proposed]],
        [Proposal(token) for token in proposed],
        params=SamplingParams(),
        history=TokenHistory(),
        seed=0,
        position=1,
        stop_ids=(stop,),
        budget=99,
    )
    assert verdict.tokens == tuple((START + 1 + index) % V for index in range(at + 1))
    assert verdict.accepted == min(at + 1, 4)


def test_a_withheld_bonus_is_not_drawn_and_a_recovered_token_is() -> None:
    assert walk(chain(3), withhold_bonus=True) == Verdict(tuple(chain(3)), 3)
    bad = [chain(1)[0], (chain(2)[1] + 1) % V]
    assert walk(bad, withhold_bonus=True) == Verdict(tuple(chain(2)), 1)


def test_tokens_of_the_block_count_for_the_penalties() -> None:
    """A target that always likes token 1 best, and a penalty that moves it on after each use."""
    row = np.array([0.0, 1.0, 0.7, 0.4])
    params = SamplingParams(frequency_penalty=0.35)
    history = TokenHistory([1, 1, 1])  # the prompt does not count for this penalty
    proposals = [Proposal(token) for token in (1, 2, 1, 2)]
    verdict = verify_block(np.stack([row] * 5), proposals, params=params, history=history, seed=0, position=3, budget=9)
    expected, alone = [], TokenHistory([1, 1, 1])
    for _ in verdict.tokens:
        expected.append(greedy_token(row, params, alone))
        alone.append(expected[-1])
    assert list(verdict.tokens) == expected
    assert len(set(expected)) > 1
    assert np.array_equal(process_logits(row, params, history), process_logits(row, params, alone))


def test_a_row_that_is_not_finite_ends_the_walk_when_it_is_reached() -> None:
    rows = TABLE[[START, *chain(2)]].copy()
    options: dict[str, Any] = {"params": SamplingParams(), "seed": 0, "position": 1, "budget": 9}
    right, wrong = [Proposal(token) for token in chain(2)], [Proposal((chain(1)[0] + 1) % V)] * 2
    for bad in (2, 1):
        rows[bad] = np.nan
        history = TokenHistory()
        assert verify_block(rows, right, history=history, **options) == Verdict(tuple(chain(bad)), bad)
        assert verify_block(rows, wrong, history=TokenHistory(), **options) == Verdict(tuple(chain(1)), 0)
    rows[0] = np.nan
    with pytest.raises(NonFiniteLogitsError):
        verify_block(rows, right, history=TokenHistory(), **options)


@settings(max_examples=300, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    table=st.integers(0, 1000),
    proposed=st.lists(st.integers(0, V - 1), max_size=6),
    helpful=st.booleans(),
    stop_ids=st.sets(st.integers(0, V - 1), max_size=2),
    budget=st.integers(1, 8),
    withhold=st.booleans(),
    options=st.sampled_from(
        [
            {},
            {"temperature": 0.8},
            {"temperature": 0.8, "mode": "rejection"},
            {"temperature": 1.1, "repetition_penalty": 1.5, "presence_penalty": 0.5},
            {"repetition_penalty": 1.5, "frequency_penalty": 0.5},
        ]
    ),
)
def test_what_holds_for_every_block(
    seed: int,
    table: int,
    proposed: list[int],
    helpful: bool,
    stop_ids: set[int],
    budget: int,
    withhold: bool,
    options: dict[str, Any],
) -> None:
    params = SamplingParams(**options)
    rows_after = np.random.default_rng(table).standard_normal((V, V)) * 2
    prompt = [START]
    if helpful:  # propose what the target alone would commit
        proposed = target_alone(rows_after, params, seed, prompt, len(proposed))
    history = TokenHistory(prompt)
    verdict = verify_block(
        rows_after[[START, *proposed]],
        [Proposal(token) for token in proposed],
        params=params,
        history=history,
        seed=seed,
        position=len(prompt),
        stop_ids=stop_ids,
        budget=budget,
        withhold_bonus=withhold and bool(proposed),
    )
    tokens, accepted = list(verdict.tokens), verdict.accepted
    assert 1 <= len(tokens) <= min(budget, len(proposed) + 1)
    assert accepted in (len(tokens), len(tokens) - 1)
    assert tokens[:accepted] == proposed[:accepted]
    assert not set(tokens[:-1]) & stop_ids
    if accepted < len(tokens) <= len(proposed):
        assert tokens[-1] != proposed[accepted]
    if withhold and proposed:
        assert len(tokens) <= len(proposed)
    if params.greedy or params.mode == "coupled":
        assert tokens == target_alone(rows_after, params, seed, prompt, len(tokens))
    grown = TokenHistory(prompt, tokens)
    assert np.array_equal(process_logits(TABLE[0], params, history), process_logits(TABLE[0], params, grown))


def target_alone(
    rows_after: NDArray[np.float64], params: SamplingParams, seed: int, prompt: list[int], count: int
) -> list[int]:
    """Decoding one token at a time without a draft."""
    sequence = list(prompt)
    for _ in range(count):
        history = TokenHistory(prompt, sequence[len(prompt) :])
        logits = rows_after[sequence[-1]]
        if params.greedy:
            sequence.append(greedy_token(logits, params, history))
        elif params.mode == "coupled":
            sequence.append(coupled_choice(process_logits(logits, params, history), seed, len(sequence)))
        else:
            edges = np.cumsum(probabilities(process_logits(logits, params, history)))
            sequence.append(int(np.argmax(edges > uniform(seed, len(sequence), Domain.BONUS) * edges[-1])))
    return sequence[len(prompt) :]
