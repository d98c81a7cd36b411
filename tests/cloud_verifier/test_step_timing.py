from __future__ import annotations

from collections.abc import Callable

import pytest
from draftwire.cloud_verifier.step_timing import main, measure, measure_beside
from draftwire.cloud_verifier.targets.table_target import TableTarget

MakeModel = Callable[..., str]


def test_each_shape_is_measured_and_the_target_left_empty() -> None:
    target = TableTarget()
    times = measure(target, [(1, 1), (3, 2)], context=5, rounds=2)
    assert list(times) == [(1, 1), (3, 2)]
    assert all(seconds > 0 for seconds in times.values())
    target.open(1, 5)


def test_idle_streams_come_and_go() -> None:
    target = TableTarget()
    alone, beside = measure_beside(target, 4, context=9, rounds=2)
    assert alone > 0
    assert beside > 0
    assert target.kv_bytes == 0


def test_the_command_prints_a_table(make_model: MakeModel, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([make_model("llama"), "--context", "8", "--rounds", "1", "--idle", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split()[-1] == "1.00"
    assert len(lines) == 10
    assert lines[-1].startswith("1 x 1 beside 5 idle streams")


def test_a_model_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["./nowhere"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
