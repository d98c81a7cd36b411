"""What the controllers lose to the best fixed look-ahead in hindsight, on recorded text.

Of the combinations of circumstances every other one is played, and all of them with ``DRAFTWIRE_SOAK``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client import regret
from draftwire.edge_client.regret import Text, best_fixed, play, text_of
from draftwire.edge_client.replay import Conditions, Playing
from draftwire.edge_client.trace import Trace
from draftwire.protocol.errors import InvalidParameterError

TRACE = Path(__file__).parent / "demo_pair_trace.json"
DELAYS = (0.005, 0.020, 0.055, 0.111, 0.150)
PAIRS = {  # step, draft, and the share of a step that a further token costs
    "this pair, bfloat16": (0.029, 0.007, 0.02),
    "this pair, float32": (0.041, 0.007, 0.12),
    "a slower target": (0.050, 0.008, 0.04),
}
TEMPERATURES = (0.0, 0.7)
CHANGES = ((0.0025, 0.055), (0.02, 0.15), (0.15, 0.0025), (0.111, 0.02))
STRETCHES = (((600, 0.85), (600, 0.2)), ((600, 0.2), (600, 0.85)), ((600, 0.0), (600, 0.85)), ((900, 0.4),))
SOAKING = "DRAFTWIRE_SOAK" in os.environ


def some(*circumstances: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Every other combination, as on a chessboard; all of them in a soak."""
    numbered = product(*map(enumerate, circumstances))
    return [
        tuple(value for _, value in combination)
        for combination in numbered
        if SOAKING or sum(number for number, _ in combination) % 2 == 0
    ]


def conditions(pair: str, delay: float) -> Conditions:
    step, draft, slope = PAIRS[pair]
    return Conditions(step=step, draft=draft, delay=delay, per_token=slope * step)


def loss(text: Text, playing: Playing) -> float:
    return play(text, "adaptive", playing).seconds / best_fixed(text, playing)[0] - 1


@pytest.mark.parametrize(("pair", "temperature", "delay"), some(PAIRS, TEMPERATURES, DELAYS))
def test_the_default_loses_at_most_two_percent(pair: str, temperature: float, delay: float) -> None:
    assert loss(text_of(Trace.load(TRACE), temperature), conditions(pair, delay)) <= 0.02


@pytest.mark.parametrize(("pair", "change"), some(PAIRS, CHANGES))
def test_and_at_most_five_when_the_distance_changes(pair: str, change: tuple[float, float]) -> None:
    before, after = change
    text = text_of(Trace.load(TRACE), 0.0)
    middle = 0.35 * len(text.right) * PAIRS[pair][0]
    assert loss(text, lambda now: conditions(pair, before if now < middle else after)) <= 0.05


def _text(*stretches: tuple[int, float]) -> Text:
    chance = random.Random(3)
    right = [chance.random() < rate for count, rate in stretches for _ in range(count)]
    return Text(tuple(right), tuple(6 if hit else 11 for hit in right))


@pytest.mark.parametrize(("stretches", "delay"), some(STRETCHES, DELAYS))
def test_and_when_the_acceptance_changes(stretches: tuple[tuple[int, float], ...], delay: float) -> None:
    assert loss(_text(*stretches), conditions("this pair, bfloat16", delay)) <= 0.05


def test_the_comparison_can_tell_controllers_apart() -> None:
    """AIMD halves its look-ahead at each rejection, which real text does not deserve."""
    text = text_of(Trace.load(TRACE), 0.0)
    playing = conditions("this pair, bfloat16", 0.005)
    best = best_fixed(text, playing)[0]
    assert play(text, "aimd", playing).seconds / best - 1 > 0.05
    assert best_fixed(text, playing, [1])[0] / best - 1 > 0.05


def test_a_temperature_that_was_not_recorded() -> None:
    with pytest.raises(InvalidParameterError, match=r"1.5 is not in the trace, which has \[0.0, 0.7\]"):
        text_of(Trace.load(TRACE), 1.5)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret.main([str(TRACE), "--delays", "150", "--temperature", "0.7"]) == 0
    out = capsys.readouterr().out
    assert "12 texts at temperature 0.7" in out
    assert "a step 30 ms, a drafted token 7 ms; each draft token in a step makes it 2% longer" in out
    *_, names, row = out.splitlines()
    assert names.split() == ["one-way", "delay", "best", "fixed", "adaptive", "aimd", "pid", "bandit"]
    assert row.split()[:2] == ["150", "ms"]
    assert row.count("x ") == row.count("%") + 1 == 5
    assert len(row) == len(names)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--step", "0"], "--step"),
        (["--step", "nan"], "--step"),
        (["--draft=-1"], "--draft"),
        (["--draft", "inf"], "--draft"),
        (["--slope=-0.1"], "--slope"),
        (["--slope", "nan"], "--slope"),
        (["--delays=-5"], "--delays"),
        (["--delays", "5,nan"], "--delays"),
        (["--delays", "5,,20"], "--delays"),
        (["--delays", "far"], "--delays"),
        (["--temperature", "nan"], "temperature"),
    ],
)
def test_wrong_usage(arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert regret.main([str(TRACE), *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"draftwire: error: {named}: ")


def test_a_trace_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert regret.main(["nowhere.json"]) == 2
    assert "nowhere.json cannot be read" in capsys.readouterr().err


RECORD = '{"task": "", "temperature": %s, "seed": 1, "ranks": %s, "confidences": %s}'


@pytest.mark.parametrize(
    "records",
    [
        "[" * 100_000,
        f"[{RECORD % ('0', '[]', '[]')}]",
        f"[{RECORD % ('NaN', '[0]', '[1]')}]",
        f"[{RECORD % ('9' * 400, '[0]', '[1]')}]",
    ],
    ids=["nested", "empty", "nan", "digits"],
)
def test_a_file_that_is_no_trace(records: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.json"
    file.write_text(f'{{"target": "big", "draft": "small", "about": "", "records": {records}}}', "utf-8")
    assert regret.main([str(file)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(f"draftwire: error: trace: {file} is no trace: ")
    assert told.err.endswith("; record it again\n")
    assert told.err.count("\n") == 1
