"""What an emulated network can be like, and how a command line writes it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from draftwire.edge_client.wan_conditions import Conditions, Cut, Way, parse_bandwidth, parse_jitter
from draftwire.protocol.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("delay", {"delay": -0.1}),
        ("delay", {"delay": math.nan}),
        ("delay", {"delay": 60.0}),
        ("delay", {"delay": "1"}),
        ("jitter", {"jitter": -1.0}),
        ("jitter", {"jitter": (0.2, 0.1)}),
        ("jitter", {"jitter": (0.0, math.inf)}),
        ("jitter", {"jitter": (0.0, 0.1, 0.2)}),
        ("jitter", {"jitter": None}),
        ("bandwidth_up", {"bandwidth_up": 0.0}),
        ("bandwidth_up", {"bandwidth_up": True}),
        ("bandwidth_down", {"bandwidth_down": math.inf}),
    ],
)
def test_impossible_conditions_are_named(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        Conditions(**values)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("after_seconds", {}),
        ("after_seconds", {"after_seconds": 1.0, "after_bytes": 1}),
        ("after_seconds", {"after_seconds": -1.0}),
        ("after_seconds", {"after_seconds": math.nan}),
        ("after_bytes", {"after_bytes": 0}),
        ("after_bytes", {"after_bytes": 1.5}),
        ("way", {"after_bytes": 1, "way": "sideways"}),
    ],
)
def test_impossible_cuts_are_named(field: str, values: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        Cut(**values)
    assert refused.value.field == field


@pytest.mark.parametrize("way", ["up", "down"])
def test_each_way_has_its_bandwidth(way: Way) -> None:
    assert Conditions(bandwidth_up=1000, bandwidth_down=2000).bandwidth(way) == {"up": 1000, "down": 2000}[way]


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("100k", (1e5, 1e5)),
        ("2M", (2e6, 2e6)),
        ("1.5G", (1.5e9, 1.5e9)),
        ("9600", (9600, 9600)),
        ("64k/2M", (64e3, 2e6)),
    ],
)
def test_bandwidth_as_text(text: str, pair: tuple[float, float]) -> None:
    assert parse_bandwidth(text, field="--bandwidth") == pair


@pytest.mark.parametrize("text", ["", "k", "0", "-5", "2MM", "2Mk", "1/2/3", "/", "nan", "inf", "fast", "2m"])
def test_no_bandwidth_as_text(text: str) -> None:
    with pytest.raises(InvalidParameterError) as refused:
        parse_bandwidth(text, field="--bandwidth")
    assert refused.value.field == "--bandwidth"


@pytest.mark.parametrize(("text", "pair"), [("5", (0.0, 0.005)), ("1-5", (0.001, 0.005)), ("0", (0.0, 0.0))])
def test_jitter_as_text(text: str, pair: tuple[float, float]) -> None:
    assert parse_jitter(text, field="--jitter") == pair


@pytest.mark.parametrize("text", ["", "-5", "5-1", "1-", "a", "nan", "1-inf", "70000"])
def test_no_jitter_as_text(text: str) -> None:
    with pytest.raises(InvalidParameterError):
        parse_jitter(text, field="--jitter")
