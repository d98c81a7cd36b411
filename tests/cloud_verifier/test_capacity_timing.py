from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.capacity_replay import Script, load_script, run
from draftwire.cloud_verifier.capacity_timing import main, sweep
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.errors import InvalidParameterError

TRACE = Path(__file__).parents[1] / "edge_client" / "demo_pair_trace.json"


def rate_of(script: Script, *, look_ahead: int, streams: int = 3, max_block: int = 16) -> tuple[float, float]:
    """Tokens a stream commits in a step, and tokens that a step computes for each."""
    scheduler = Scheduler(max_block=max_block)
    result = run(script, model=None, streams=streams, look_ahead=look_ahead, tokens=60, scheduler=scheduler)
    return result.committed / result.steps / streams, result.tokens / result.steps / streams


def test_without_drafts_a_step_commits_one_token_of_each() -> None:
    assert rate_of(Script([True] * 50, [0] * 50), look_ahead=0) == (1.0, 1.0)


def test_drafts_that_are_always_right_are_all_committed() -> None:
    committed, computed = rate_of(Script([True] * 50, [0] * 50), look_ahead=4)
    assert committed == pytest.approx(5, abs=0.3)
    assert computed == pytest.approx(5, abs=0.3)


def test_drafts_that_are_never_right_commit_nothing_more() -> None:
    committed, computed = rate_of(Script([False] * 50, [0] * 50), look_ahead=4)
    assert committed == pytest.approx(1, abs=0.02)
    assert computed > 1


def test_a_replayed_device_is_right_where_the_record_was() -> None:
    script = Script([True, True, False] * 40, [0] * 120)
    committed, _ = rate_of(script, look_ahead=8, streams=1)
    assert committed == pytest.approx(3, abs=0.2)  # two right ones, and what the target says in place of the third
    assert script.expected(8) == pytest.approx(2, abs=0.05)  # from any position, not only from after a wrong one


def test_the_recorded_pair_is_worth_its_drafts() -> None:
    script = load_script(TRACE)
    committed, _ = rate_of(script, look_ahead=8)
    assert 2 < committed < 6


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("{", "no trace"),
        ("[]", "no trace"),
        ({"records": [{"temperature": 0}]}, "no trace"),
        ({"records": [{"temperature": 0.0, "ranks": [0], "confidences": [1]}]}, "record more"),
        ({"records": [{"temperature": 0.7, "ranks": [0] * 99, "confidences": [1] * 99}]}, "record more"),
    ],
)
def test_what_is_no_trace_is_told(
    tmp_path: Path, content: Any, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InvalidParameterError, match=problem):
        load_script(path)
    assert main(["nowhere", str(path)]) == 1
    assert problem in capsys.readouterr().err


def test_a_sweep_has_every_cell_and_leaves_the_target_empty() -> None:
    target = TableTarget(vocabulary_size=64, max_context=8192)
    cells = list(
        sweep(
            Script([True] * 90, [0] * 90),
            target,
            streams=[1, 2],
            look_aheads=[1, 3],
            tokens=8,
            positions=60,
            repeats=1,
        )
    )
    assert [(cell.streams, cell.look_ahead) for cell in cells] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert [cell.tokens_a_pass for cell in cells] == pytest.approx([2, 4, 2, 4], abs=0.3)
    assert all(cell.limit > 0 and cell.gain > 0 and cell.flat > 1 for cell in cells)
    assert target.kv_bytes == 0


def test_the_command_prints_a_table_or_json(make_model: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        make_model("llama"),
        str(TRACE),
        "--streams",
        "2",
        "--look-ahead",
        "2",
        "--tokens",
        "8",
        "--positions",
        "60",
        "--repeats",
        "1",
    ]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[2].split()[:2] == ["2", "2"]
    assert main([*arguments, "--json"]) == 0
    (cell,) = json.loads(capsys.readouterr().out)["cells"]
    assert cell["streams"] == cell["look_ahead"] == 2
    assert cell["reached"] == pytest.approx(cell["gain"] / cell["limit"])
