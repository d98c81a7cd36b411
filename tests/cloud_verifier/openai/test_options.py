"""Options of a request: OpenAI's defaults, everybody's ranges, and each refused by its name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from draftwire.cloud_verifier.openai.fields import Fields
from draftwire.cloud_verifier.openai.options import Options, read_options
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.sampling import SamplingParams


def read(**values: Any) -> Options:
    fields = Fields(values)
    options = read_options(fields, most_choices=8)
    fields.finish()
    return options


def test_defaults_are_openais() -> None:
    options = read()
    assert options.sampling == SamplingParams(temperature=1.0)
    assert (options.model, options.count, options.stops) == (None, 1, ())
    assert (options.stream, options.include_usage, options.ignore_eos) == (False, False, False)


def test_every_sampling_parameter_arrives() -> None:
    values = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.4,
    }
    sampling = read(**values, logit_bias={"5": 2, "3": -1.5}).sampling
    assert {name: getattr(sampling, name) for name in values} == values
    assert sampling.logit_bias == ((3, -1.5), (5, 2.0))
    assert set(values) | {"logit_bias", "mode"} == set(SamplingParams.names()), "one is not read"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", math.nan),
        ("temperature", -1),
        ("temperature", 10**400),
        ("temperature", "1"),
        ("top_p", -1),
        ("top_p", 2),
        ("top_p", 0),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 1.1),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("n", 0),
        ("n", 9),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 1.5),
        ("stream", 1),
        ("ignore_eos", "yes"),
        ("model", 5),
        ("stop", 5),
        ("stop", ["a", 5]),
        ("stop", ["a"] * 5),
        ("stop", ""),
        ("stop", ["a", ""]),
        ("stop", "a" * 501),
        ("logit_bias", [[1, 2]]),
        ("logit_bias", {"one": 1}),
        ("logit_bias", {"1": "x"}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", {"1": math.nan}),
        ("logit_bias", {"1": 1, "01": 1}),
        ("logit_bias", {"9" * 5000: 1}),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read(**{field: value})
    assert caught.value.field == field
    assert len(str(caught.value)) < 200


def test_stops_are_one_or_several() -> None:
    assert read(stop="END").stops == ("END",)
    assert read(stop=["a", "b", "c", "d"]).stops == ("a", "b", "c", "d")
    assert read(stop=[]).stops == ()


def test_usage_is_for_streams() -> None:
    assert read(stream=True, stream_options={"include_usage": True}).include_usage
    assert not read(stream=True, stream_options={"include_obfuscation": False}).include_usage
    with pytest.raises(InvalidParameterError, match=r"^stream_options\.other:"):
        read(stream=True, stream_options={"other": 1})


def test_seeds_count_up_within_64_bits() -> None:
    assert [read(seed=5).seed_of(sample) for sample in range(3)] == [5, 6, 7]
    assert read(seed=2**64 - 1).seed_of(1) == 0
    assert read(seed=-1).seed == 2**64 - 1


def test_a_drawn_seed_survives_any_reader_of_json() -> None:
    seeds = {read().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(int(float(seed)) == seed for seed in seeds)


@pytest.mark.parametrize("field", ["user", "metadata", "store", "service_tier", "prompt_cache_key"])
def test_what_changes_nothing_is_let_pass(field: str) -> None:
    read(**{field: {"any": "thing"}})


@pytest.mark.parametrize("value", [10**400, -(10**400), math.inf])
def test_a_number_beyond_all_bounds_is_called_so_beside_the_range(value: float) -> None:
    for field, words in (
        ("temperature", "a number from 0 (greedy) to 100"),
        ("presence_penalty", "a number from -2 to 2 (0 is off)"),
        ("n", "a whole number from 1 to 8"),
    ):
        with pytest.raises(InvalidParameterError) as caught:
            read(**{field: value})
        assert str(caught.value) == f"{field}: must be {words}, not a number beyond all bounds"


def test_half_a_character_in_a_stop_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match=r"^stop: has half a character"):
        read(stop=["fine", "\ud83e"])
