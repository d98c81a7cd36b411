from __future__ import annotations

from typing import Any

import pytest
from draftwire.edge_client.options import DEFAULT_MAX_TOKENS, MAX_LOOK_AHEAD, GenerationOptions
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.messages import Policy
from draftwire.protocol.sampling import SamplingParams

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("field", ["max_tokens", "seed", "look_ahead"])
@pytest.mark.parametrize("value", [-1, 2**64, 1.0, NAN, INF, True, "5", [1]])
def test_whole_numbers_are_checked_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        GenerationOptions(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("max_tokens", 0), ("look_ahead", MAX_LOOK_AHEAD + 1), ("look_ahead", 10**6)]
)
def test_ranges(field: str, value: int) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        GenerationOptions(**{field: value})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("value", ["fast", "", None, 1, ["cost"]])
def test_policies_are_two(value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        GenerationOptions(policy=value)
    assert caught.value.field == "policy"


def test_the_ends_of_the_ranges_are_allowed() -> None:
    GenerationOptions(max_tokens=1, seed=0, look_ahead=0)
    GenerationOptions(max_tokens=2**31 - 1, seed=2**64 - 1, look_ahead=MAX_LOOK_AHEAD)


def test_keywords_become_options_and_sampling() -> None:
    options = GenerationOptions.of(
        {"temperature": 0.5, "max_tokens": 10, "policy": "cost"},
        {"max_tokens": 20, "top_k": 3, "logit_bias": {7: 1, 2: -1}},
    )
    assert options == GenerationOptions(
        max_tokens=20,
        policy="cost",
        sampling=SamplingParams(temperature=0.5, top_k=3, logit_bias=((2, -1.0), (7, 1.0))),
    )
    assert options.wire_policy is Policy.COST
    assert GenerationOptions().wire_policy is Policy.LATENCY


@pytest.mark.parametrize("name", ["typical_p", "n", "stop", "sampling", "top_K", "logprobs"])
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        GenerationOptions.of({}, {name: 1})
    assert caught.value.field == name


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", NAN), ("temperature", -1), ("top_p", -1), ("top_p", 2), ("repetition_penalty", 0), ("top_k", -1)],
)
def test_sampling_is_checked_too(field: str, value: float) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        GenerationOptions.of({}, {field: value})
    assert caught.value.field == field


def test_a_seed_is_always_chosen() -> None:
    assert GenerationOptions(seed=5).chosen_seed() == 5
    drawn = {GenerationOptions().chosen_seed() for _ in range(50)}
    assert len(drawn) == 50
    assert all(0 <= seed < 2**64 for seed in drawn)
    assert max(drawn) >= 2**32


def test_the_budget_fits_the_context_unless_it_was_asked_for() -> None:
    assert GenerationOptions(max_tokens=7).budget(prompt_tokens=100, max_context=50) == 7
    options = GenerationOptions()
    assert options.budget(prompt_tokens=100, max_context=10_000) == DEFAULT_MAX_TOKENS
    assert options.budget(prompt_tokens=100, max_context=150) == 50
    assert options.budget(prompt_tokens=200, max_context=150) == 1
