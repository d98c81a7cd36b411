from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client.bench import sweep as module
from draftwire.edge_client.bench.processes import CoreSplit
from draftwire.edge_client.bench.sweep import SWEEP_LOOK_AHEADS, SWEEP_STREAMS, SweepPlan, run_sweep, sweep_report
from draftwire.edge_client.cli import main
from draftwire.edge_client.commands.bench_sweep import sweep_plan
from draftwire.edge_client.trace import Trace, TraceRecord
from draftwire.protocol.errors import DraftwireError

PLAN = SweepPlan(target="model", dtype="bfloat16", streams=[1, 4], look_aheads=[2, 8], tokens=8, positions=9, repeats=1)
TRACE = Trace(
    target="t",
    draft="d",
    records=[TraceRecord(task="chat", temperature=0.0, seed=1, ranks=(0, 1), confidences=(3, 4))],
)


def cell(streams: int, look_ahead: int, gain: float) -> dict[str, Any]:
    numbers = {"least": gain, "most": gain, "tokens_a_pass": 2.0, "computed": 3.0, "limit": 3.0, "flat": 3.0}
    return {"streams": streams, "look_ahead": look_ahead, "gain": gain, "step_ms": 10.0 * streams, **numbers}


CELLS = [cell(1, 2, 1.5), cell(1, 8, 2.25), cell(4, 2, 1.25), cell(4, 8, 1.0)]


def test_the_program_is_asked_for_every_cell_with_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def ask(program: str, arguments: list[str]) -> object:
        asked.extend([program, arguments, json.loads(Path(arguments[1]).read_text("utf-8"))])
        return {"cells": CELLS}

    monkeypatch.setattr(module, "ask_program", ask)
    assert run_sweep(PLAN, TRACE, cores=CoreSplit()) == CELLS
    program, arguments, trace = asked
    assert program == "draftwire.cloud_verifier.capacity_timing"
    assert arguments[0] == "model"
    assert arguments[arguments.index("--streams") + 1] == "1,4"
    assert arguments[arguments.index("--look-ahead") + 1] == "2,8"
    assert arguments[arguments.index("--positions") + 1] == "9"
    assert trace["records"][0]["ranks"] == [0, 1]


@pytest.mark.parametrize("answer", [None, [], {}, {"cells": None}, {"cells": [{"streams": 1}]}])
def test_another_answer_is_an_error(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ask_program", lambda *_: answer)
    with pytest.raises(DraftwireError, match="sweep"):
        run_sweep(PLAN, TRACE, cores=CoreSplit())


def test_the_table_has_a_row_for_each_concurrency_and_says_what_is_best() -> None:
    lines = sweep_report(CELLS).splitlines()
    assert lines[2].split() == ["streams", "look-ahead", "2", "look-ahead", "8", "best", "step,", "ms"]
    assert lines[3].split() == ["1", "1.50x", "2.25x", "8", "10.0"]
    assert lines[4].split() == ["4", "1.25x", "1.00x", "2", "40.0"]


def parsed(**options: Any) -> argparse.Namespace:
    names = ("streams", "look_aheads", "rtt", "jitter", "bandwidth", "temperature", "modes", "adverse", "plot", "url")
    return argparse.Namespace(**{**dict.fromkeys(names), "reference": False, "quick": False, "sweep": True, **options})


def test_without_options_the_whole_table_is_measured() -> None:
    plan = sweep_plan(parsed(), dtype="float32")
    assert plan is not None
    assert (tuple(plan.streams), tuple(plan.look_aheads)) == (SWEEP_STREAMS, SWEEP_LOOK_AHEADS)
    assert sweep_plan(parsed(sweep=False), dtype="float32") is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--streams", "4"],
        ["--look-aheads", "4"],
        ["--sweep", "--streams", "0"],
        ["--sweep", "--streams", "four"],
        ["--sweep", "--look-aheads", "64"],
        ["--sweep", "--rtt", "20"],
        ["--sweep", "--url", "ws://x"],
        ["--sweep", "--adverse"],
        ["--sweep", "--reference"],
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("draftwire: error: --")
    assert error.count("\n") == 1
