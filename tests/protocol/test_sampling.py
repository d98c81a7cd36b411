from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from draftwire.protocol.errors import InvalidParameterError, NonFiniteLogitsError
from draftwire.protocol.sampling import (
    GREEDY_TEMPERATURE,
    MAX_LOGIT_BIASES,
    SamplingParams,
    TokenHistory,
    greedy_token,
    probabilities,
    process_logits,
)
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

NAN, INF = float("nan"), float("inf")


def random_logits(seed: int, size: int, scale: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(size) * scale).astype(np.float32)


# --- against transformers -----------------------------------------------------------------------------------------


def transformers_scores(logits: NDArray[np.float32], params: SamplingParams, sequence: list[int]) -> NDArray[Any]:
    """What ``generate`` makes of ``logits``: its own processors in the order of ``_get_logits_processor``."""
    steps: list[Any] = []
    if params.logit_bias:
        steps.append(SequenceBiasLogitsProcessor({(token,): bias for token, bias in params.logit_bias}))
    if params.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(penalty=params.repetition_penalty))
    if params.temperature != 1:
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(top_k=params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(top_p=params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(min_p=params.min_p))
    scores = torch.from_numpy(logits.astype(np.float64))[None]
    return LogitsProcessorList(steps)(torch.tensor([sequence]), scores)[0].numpy()


def near_a_cutoff(params: SamplingParams, logits: NDArray[np.float32], history: TokenHistory) -> bool:
    """Whether rounding alone could decide which side of a cutoff a token falls on."""
    uncut = process_logits(logits, replace(params, top_p=1.0, min_p=0.0), history)
    mass = np.cumsum(np.sort(probabilities(uncut))[::-1])
    nucleus = process_logits(logits, replace(params, min_p=0.0), history)
    ratios = probabilities(nucleus) / probabilities(nucleus).max()
    return bool((np.abs(mass - params.top_p) < 1e-9).any()) or bool((np.abs(ratios - params.min_p) < 1e-9).any())


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([2, 9, 50, 400]),
    spread=st.sampled_from([0.3, 3.0, 12.0]),
    sequence=st.lists(st.integers(0, 49), min_size=1, max_size=12),
    temperature=st.one_of(st.just(1.0), st.floats(0.05, 5)),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    min_p=st.one_of(st.just(0.0), st.floats(0.001, 0.9)),
    repetition_penalty=st.one_of(st.just(1.0), st.floats(0.5, 2.5)),
    biases=st.dictionaries(st.integers(0, 49), st.floats(-10, 10, width=32).filter(bool), max_size=4),
)
def test_scores_are_those_of_transformers(
    seed: int,
    size: int,
    spread: float,
    sequence: list[int],
    biases: dict[int, float],
    **options: Any,
) -> None:
    sequence = [token % size for token in sequence]
    bias = {token % size: value for token, value in biases.items()}
    params = SamplingParams(logit_bias=tuple(bias.items()), **options)
    split = seed % (len(sequence) + 1)  # where the prompt ends must not matter to the repetition penalty
    history = TokenHistory(sequence[:split], sequence[split:])
    logits = random_logits(seed, size, spread)
    assume(not near_a_cutoff(params, logits, history))

    ours = process_logits(logits, params, history)
    theirs = transformers_scores(logits, params, sequence)

    kept = np.isfinite(theirs)
    assert np.array_equal(np.isfinite(ours), kept)
    np.testing.assert_allclose(ours[kept] - ours.max(), theirs[kept] - theirs.max(), atol=1e-6)
    np.testing.assert_allclose(probabilities(ours), torch.softmax(torch.from_numpy(theirs), -1).numpy(), atol=1e-9)


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999, 0.9999999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_the_nucleus_of_a_large_vocabulary(top_p: float, spread: float) -> None:
    """Flat, ordinary and peaked rows: the shortcut that sorts only tokens near the top changes nothing."""
    logits = random_logits(4, 30_000, spread)
    scores = process_logits(logits, SamplingParams(temperature=1.0, top_p=top_p), TokenHistory())
    p = probabilities(logits.astype(np.float64))
    order = np.argsort(-p, kind="stable")
    count = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    assert np.array_equal(np.flatnonzero(np.isfinite(scores)), np.sort(order[:count]))


def test_ties_at_a_cutoff() -> None:
    tied = np.array([1, 5, 5, 3, 3, 3], dtype=np.float32)
    history = TokenHistory()

    def kept(**options: Any) -> list[int]:
        scores = process_logits(tied, SamplingParams(temperature=1.0, **options), history)
        return np.flatnonzero(np.isfinite(scores)).tolist()

    assert kept(top_k=1) == [1, 2]  # ties with the k-th stay
    assert kept(top_k=3) == [1, 2, 3, 4, 5]
    assert kept(top_p=0.3) == [1]  # in the nucleus equals rank by token id
    assert kept(top_p=0.82) == [1, 2]
    assert kept(top_p=0.83) == [1, 2, 3]
    assert kept(min_p=1.0) == [1, 2]
    assert kept(top_k=1, top_p=1e-9) == [1]


# --- penalties ----------------------------------------------------------------------------------------------------


@given(
    prompt=st.lists(st.integers(0, 19), max_size=10),
    answer=st.lists(st.integers(0, 19), max_size=20),
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
)
def test_presence_and_frequency_follow_the_formula(
    prompt: list[int], answer: list[int], presence: float, frequency: float
) -> None:
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, c counting the answer alone."""
    logits = random_logits(1, 20)
    params = SamplingParams(temperature=1.0, presence_penalty=presence, frequency_penalty=frequency)
    scores = process_logits(logits, params, TokenHistory(prompt, answer))
    expected = [
        float(logits[token]) - answer.count(token) * frequency - (token in answer) * presence for token in range(20)
    ]
    np.testing.assert_allclose(scores - scores.max(), np.array(expected) - max(expected), atol=1e-12)


def test_repetition_comes_before_presence_and_after_bias() -> None:
    logits = np.array([2.0, -2.0, 0.0], dtype=np.float32)
    params = SamplingParams(
        logit_bias=((0, 2.0),), repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    scores = process_logits(logits, params, TokenHistory([1], [0, 0]))
    assert scores.tolist() == [(2.0 + 2.0) / 2.0 - 0.5 - 2 * 0.25, -4.0, 0.0]


@settings(deadline=None)
@given(
    prompt=st.lists(st.integers(0, 15), max_size=8),
    answer=st.lists(st.integers(0, 15), max_size=8),
    block=st.lists(st.integers(0, 15), min_size=1, max_size=8),
)
def test_taking_tokens_back_restores_the_scores(prompt: list[int], answer: list[int], block: list[int]) -> None:
    logits = random_logits(2, 16)
    params = SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2)
    history = TokenHistory(prompt, answer)
    before = process_logits(logits, params, history)
    for token in block:
        history.append(token)
    grown = process_logits(logits, params, history)
    assert np.array_equal(grown, process_logits(logits, params, TokenHistory(prompt, answer + block)))
    for token in reversed(block):
        history.remove(token)
    assert np.array_equal(process_logits(logits, params, history), before)


def test_tokens_outside_the_row_are_no_trouble() -> None:
    logits = random_logits(3, 8)
    params = SamplingParams(temperature=1.0, repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((99, 5.0),))
    plain = process_logits(logits, SamplingParams(temperature=1.0), TokenHistory())
    assert np.array_equal(process_logits(logits, params, TokenHistory([50], [60])), plain)


# --- greedy, and rows that are not finite -------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-9, GREEDY_TEMPERATURE * 0.999])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=5, top_p=0.5, repetition_penalty=1.5)
    assert params.greedy
    for seed in range(50):
        logits, history = random_logits(seed, 100), TokenHistory([1, 2], [3])
        zero = replace(params, temperature=0.0)
        assert greedy_token(logits, params, history) == greedy_token(logits, zero, history)
        assert greedy_token(logits, params, history) == int(
            transformers_scores(logits, params_at_one(params), [1, 2, 3]).argmax()
        )


def params_at_one(params: SamplingParams) -> SamplingParams:
    return SamplingParams(temperature=1.0, repetition_penalty=params.repetition_penalty)


def test_the_least_sampling_temperature_neither_overflows_nor_warns() -> None:
    params = SamplingParams(temperature=GREEDY_TEMPERATURE)
    assert not params.greedy
    logits = np.array([3e38, -3e38, 0, 2.9e38], dtype=np.float32)
    assert probabilities(process_logits(logits, params, TokenHistory())).tolist() == [1, 0, 0, 0]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert greedy_token(np.array([1, 4, 4, 2], dtype=np.float32), SamplingParams(), TokenHistory()) == 1


@pytest.mark.parametrize(
    "bad", [[NAN, 1, 2], [1, NAN, INF], [1, INF, 2], [-INF, -INF, -INF], [NAN, NAN, NAN], [-INF, NAN, 5]]
)
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"repetition_penalty": 1.2}, {"logit_bias": ((1, 3.0),)}]
)
def test_rows_that_are_not_finite_are_refused(bad: list[float], options: dict[str, Any]) -> None:
    params, row = SamplingParams(**options), np.array(bad, dtype=np.float32)
    with pytest.raises(NonFiniteLogitsError):
        greedy_token(row, params, TokenHistory([0])) if params.greedy else process_logits(
            row, params, TokenHistory([0])
        )
    with pytest.raises(NonFiniteLogitsError):
        process_logits(row, params, TokenHistory([0]))


@pytest.mark.parametrize("top_p", [1.0, 0.9999999999999999, 0.5])
def test_minus_infinity_beside_finite_logits_is_a_token_cut_off(top_p: float) -> None:
    row = np.array([-INF, 1.0, -INF, 1.0], dtype=np.float32)
    params = SamplingParams(
        temperature=0.7, top_p=top_p, repetition_penalty=1.2, frequency_penalty=1, logit_bias=((0, 9),)
    )
    p = probabilities(process_logits(row, params, TokenHistory([0], [2])))
    assert p[0] == p[2] == 0
    assert p.sum() == 1
    assert greedy_token(row, SamplingParams(), TokenHistory()) == 1


@settings(max_examples=200, deadline=None)
@given(
    row=st.lists(st.one_of(st.floats(width=32, allow_nan=False), st.just(-INF)), min_size=1, max_size=12),
    temperature=st.floats(0, 100),
    top_k=st.integers(0, 2**31 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0, 100, exclude_min=True),
)
def test_allowed_parameters_never_make_nan(row: list[float], **options: Any) -> None:
    params = SamplingParams(**options)
    logits = np.array(row, dtype=np.float32)
    history = TokenHistory([0], [len(row) - 1])
    if not -INF < max(row) < INF:
        with pytest.raises(NonFiniteLogitsError):
            process_logits(logits, params, history)
        return
    p = probabilities(process_logits(logits, params, history))
    assert np.isfinite(p).all()
    assert p.sum() == pytest.approx(1)


@pytest.mark.parametrize("penalty", [5e-324, 1e-310, 1e-100])
def test_a_vanishing_repetition_penalty_does_not_overflow(penalty: float) -> None:
    row = np.array([3e38, 3.1e38, -3e38, 0], dtype=np.float32)
    params = SamplingParams(temperature=GREEDY_TEMPERATURE, repetition_penalty=penalty)
    assert probabilities(process_logits(row, params, TokenHistory([0, 2]))).tolist() == [1, 0, 0, 0]


def test_the_row_given_is_left_alone() -> None:
    logits = random_logits(5, 30)
    copy = logits.copy()
    params = SamplingParams(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, repetition_penalty=2.0, logit_bias=((1, 1),)
    )
    process_logits(logits, params, TokenHistory([1], [2]))
    process_logits(logits, SamplingParams(), TokenHistory([1], [2]))
    assert np.array_equal(logits, copy)


# --- what is refused ----------------------------------------------------------------------------------------------

REALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
OUT_OF_RANGE: dict[str, tuple[float, ...]] = {
    "temperature": (-1, -1e-300, 100.1),
    "top_p": (-1, 0, 1.0000001, 2),
    "min_p": (-1, -1e-300, 1.0000001, 2),
    "repetition_penalty": (-1, 0, 100.1),
    "presence_penalty": (-2.1, 2.1),
    "frequency_penalty": (-2.1, 2.1),
}


@pytest.mark.parametrize("field", REALS)
@pytest.mark.parametrize("value", [NAN, INF, -INF, True, False, "1", None, [1.0], 1j, pytest.param(10**400, id="huge")])
def test_what_is_no_number_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: must be ")


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in REALS for value in OUT_OF_RANGE[field]])
def test_what_is_out_of_range_is_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("value", [-1, 2**31, 1.0, NAN, INF, True, "5", None])
def test_top_k_is_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(top_k=value)  # type: ignore[arg-type]
    assert caught.value.field == "top_k"


@pytest.mark.parametrize("value", ["greedy", "", None, 1, ["coupled"]])
def test_modes_are_two(value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(mode=value)  # type: ignore[arg-type]
    assert caught.value.field == "mode"


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        "ab",
        ((1,),),
        ((1, 2.0, 3.0),),
        ((1, NAN),),
        ((1, INF),),
        ((1, 10**400),),
        ((1, True),),
        ((1, "2"),),
        ((1, 100.1),),
        ((1, -101),),
        ((-1, 1.0),),
        ((2**31, 1.0),),
        ((1.0, 1.0),),
        ((True, 1.0),),
        (("1", 1.0),),
        ((1, 1.0), (1, 2.0)),
        tuple((token, 1.0) for token in range(MAX_LOGIT_BIASES + 1)),
    ],
)
def test_logit_bias_is_checked(value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        SamplingParams(logit_bias=value)
    assert caught.value.field == "logit_bias"


def test_what_is_given_is_kept_in_one_form() -> None:
    params = SamplingParams(temperature=1, logit_bias=[(7, 1), (3, -2.5)])  # type: ignore[arg-type]
    assert params == SamplingParams(temperature=1.0, logit_bias=((3, -2.5), (7, 1.0)))
    assert isinstance(params.temperature, float)
    assert hash(params) == hash(SamplingParams(temperature=1.0, logit_bias=((3, -2.5), (7, 1.0))))
    assert params.names() == (
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "mode",
    )


def test_an_unknown_parameter_is_no_parameter() -> None:
    with pytest.raises(TypeError, match="typical_p"):
        SamplingParams(typical_p=0.5)  # type: ignore[call-arg]


def test_probabilities_sum_to_one_in_double_precision() -> None:
    p = probabilities(process_logits(random_logits(6, 50_000), SamplingParams(temperature=1.3), TokenHistory()))
    assert p.dtype == np.float64
    assert math.isclose(p.sum(), 1, abs_tol=1e-12)
