from __future__ import annotations

from typing import Any

import pytest
from draftwire.edge_client.bench.modes import DEFAULT_MODES, parse_modes
from draftwire.edge_client.options import GenerationOptions
from draftwire.protocol.errors import InvalidParameterError


def test_cloud_only_comes_first_and_each_mode_once() -> None:
    assert [mode.name for mode in parse_modes(["draftwire", "serial", "draftwire", "cloud_only"])] == [
        "cloud_only",
        "draftwire",
        "serial",
    ]


@pytest.mark.parametrize("name", [*DEFAULT_MODES, "cost", "aimd", "pid", "bandit", "fixed:1", "fixed:64"])
def test_every_variant_is_something_the_client_can_do(name: str) -> None:
    for variant in parse_modes([name])[-1].variants:
        options = GenerationOptions.of({}, variant.options)
        assert options.drafting is (name != "cloud_only")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("draftwire", [{"controller": "adaptive", "policy": "latency", "look_ahead": None}]),
        ("pipelined", [{"controller": "fixed", "policy": "cost", "look_ahead": 16}]),
        ("serial", [{"controller": "serial", "policy": "cost", "look_ahead": length} for length in (3, 6)]),
        ("fixed:8", [{"controller": "fixed", "policy": "latency", "look_ahead": 8}]),
    ],
)
def test_what_the_names_mean(name: str, expected: list[dict[str, Any]]) -> None:
    found = [GenerationOptions.of({}, variant.options) for variant in parse_modes([name])[-1].variants]
    assert [{key: getattr(options, key) for key in expected[0]} for options in found] == expected


@pytest.mark.parametrize("name", ["", "fast", "fixed", "fixed:", "fixed:0", "fixed:65", "fixed:x", "serial:3"])
def test_an_unknown_mode_is_named(name: str) -> None:
    with pytest.raises(InvalidParameterError, match="--modes: must be of"):
        parse_modes([name])
