"""``draftwire bench``, run as users run it: against table models by ``--url``, and once with the demo pair."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client.cli import main
from draftwire.edge_client.trace import Trace

from ..grace import GRACE, wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_bundle import right_table, seal, write_bundle
from .table_targets import PacedTarget, endless_table

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
MODES = ["cloud_only", "serial", "draftwire"]


class Bench:
    """One run of the command."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, *arguments: str, **streams: Any) -> Bench:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "draftwire.edge_client.cli",
                "bench",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                **{"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **streams},
            )
        )

    async def until_says(self, text: str) -> None:
        """Read what it says of its progress until that is there."""
        assert self.process.stderr is not None
        while text not in (line := (await wait_for(self.process.stderr.readline())).decode()):
            assert line, f"it ended and never said {text!r}"

    async def end(self) -> tuple[int, str, str]:
        """Exit status, output, errors."""
        out, err = await wait_for(self.process.communicate())
        assert self.process.returncode is not None
        return self.process.returncode, (out or b"").decode(), (err or b"").decode()


async def bench(*arguments: str, **streams: Any) -> tuple[int, str, str]:
    return await (await Bench.start(*arguments, **streams)).end()


@pytest.fixture
async def verifier() -> AsyncIterator[RunningVerifier]:
    """Its steps take long enough for the clock on the wire."""
    target = PacedTarget(seconds=0.002, vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with running_verifier(target) as running:
        yield running


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target itself, which writes every prompt in its own few letters."""
    target = endless_table()
    folder = write_bundle(tmp_path_factory.mktemp("draft"), target, right_table(target))
    (folder / "chat_template.jinja").write_text("abc", encoding="utf-8")
    seal(folder)
    return folder


def small(verifier: RunningVerifier, draft: Path, *more: str) -> list[str]:
    """The smallest grid, against a running verifier."""
    grid = ["--rtt", "5", "--temperature", "0.7", "--prompts", "1", "--max-tokens", "6", "--modes", ",".join(MODES)]
    return [*grid, "--url", verifier.url, "--draft", str(draft), *more]


async def test_measures_a_running_verifier(verifier: RunningVerifier, draft: Path, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("all.json", "chart.png", "trace.json")]
    outputs = ["--json", str(files[0]), "--plot", str(files[1]), "--record", str(files[2])]
    status, out, err = await bench(*small(verifier, draft, "--repeats", "2", *outputs))
    assert status == 0, err
    assert out.startswith(f"Target {verifier.target.info.name}, draft ")
    assert "\n1 prompt (chat), 2 answers to each, at most 6 tokens an answer\n\nSpeed, temperature 0.7\n" in out
    content = json.loads(files[0].read_text("utf-8"))
    [condition] = content["conditions"]
    assert condition["complete"] is True
    assert [mode["mode"] for mode in condition["modes"]] == MODES
    assert [mode["answers"] for mode in condition["modes"]] == [2, 2, 2]
    assert [variant["variant"] for variant in condition["variants"]] == ["", "K=3", "K=6", ""]
    assert condition["modes"][2]["predicted"] > 0
    assert condition["measured_rtt_ms"] >= 5
    assert condition["modes"][2]["measured"]["step"] >= 0.001
    assert content["target"]["name"] == verifier.target.info.name
    assert content["target"]["fingerprint"] == content["draft"]["fingerprint"]
    assert content["interrupted"] is False
    assert files[1].read_bytes().startswith(b"\x89PNG")
    trace = Trace.load(files[2])
    assert [(record.seed, record.temperature) for record in trace.records] == [(7, 0.7), (8, 0.7)]
    assert all(record.right == (True,) * 6 for record in trace.records)  # this draft is the target itself


async def test_without_a_network_to_emulate_it_connects_directly(verifier: RunningVerifier, draft: Path) -> None:
    status, out, err = await bench(*small(verifier, draft, "--rtt", "0", "--temperature", "0"))
    assert status == 0, err
    assert re.search(r"^     0 +\d+\.\d  cloud_only", out, re.MULTILINE)


async def test_a_condition_that_fails_is_told_and_the_others_are_measured(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    options = ["--temperature", "1e300,0", "--json", str(tmp_path / "all.json")]
    status, out, err = await bench(*small(verifier, draft, *options))
    assert status == 1, err  # the first temperature is refused as as good as infinite
    assert "Failed: RTT 5 ms, temperature 1e+300: " in out
    assert "Speed, temperature 0\n" in out
    failed, measured = json.loads((tmp_path / "all.json").read_text("utf-8"))["conditions"]
    assert failed["failure"]
    assert measured["complete"] is True


async def test_an_interrupt_shows_what_was_measured(verifier: RunningVerifier, draft: Path, tmp_path: Path) -> None:
    options = ["--rtt", "1,10000", "--json", str(tmp_path / "all.json")]
    run = await Bench.start(*small(verifier, draft, *options))
    await run.until_says("RTT 1 ms, temperature 0.7: ")
    run.process.send_signal(signal.SIGINT)
    status, out, err = await run.end()
    assert status == 130, err
    assert "Traceback" not in err
    assert re.search(r"^     1 +\d+\.\d  cloud_only", out, re.MULTILINE)
    assert json.loads((tmp_path / "all.json").read_text("utf-8"))["interrupted"] is True


def complete(file: Path) -> bool:
    [condition] = json.loads(file.read_text("utf-8"))["conditions"]
    return bool(condition["complete"])


@full
async def test_a_file_that_cannot_be_written_takes_nothing_else_with_it(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    outputs = ["--json", "/dev/full", "--record", str(tmp_path / "trace.json"), "--plot", str(tmp_path / "chart.png")]
    status, out, err = await bench(*small(verifier, draft, *outputs))
    assert status == 1
    assert "\nSpeed, temperature 0.7\n" in out
    assert err.endswith("\ndraftwire: error: --json: /dev/full cannot be written: No space left on device\n")
    assert len(Trace.load(tmp_path / "trace.json").records) == 1
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


@full
async def test_every_file_that_cannot_be_written_is_told(verifier: RunningVerifier, draft: Path) -> None:
    options = [word for option in ("--json", "--record", "--plot") for word in (option, "/dev/full")]
    status, out, err = await bench(*small(verifier, draft, *options))
    assert status == 1
    assert "\nSpeed, temperature 0.7\n" in out
    assert re.findall("error: (.*?): ", err) == ["--json", "--record", "--plot"]


@full
async def test_the_files_are_there_though_nobody_takes_the_tables(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    files = [tmp_path / "full.json", tmp_path / "broken.json"]
    with open("/dev/full", "wb") as gone:
        status, _, err = await bench(*small(verifier, draft, "--json", str(files[0])), stdout=gone)
    assert (status, err.splitlines()[-1]) == (
        1,
        "draftwire: error: cannot write the output: No space left on device",
    )
    read, write = os.pipe()
    os.close(read)
    try:
        status, _, err = await bench(*small(verifier, draft, "--json", str(files[1])), stdout=write)
    finally:
        os.close(write)
    assert status == 141
    assert "error" not in err
    assert complete(files[0])
    assert complete(files[1])


@full
async def test_progress_that_cannot_be_written_does_not_end_the_run(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    with open("/dev/full", "wb") as gone:
        status, out, _ = await bench(*small(verifier, draft, "--json", str(tmp_path / "all.json")), stderr=gone)
    assert status == 0
    assert "\nSpeed, temperature 0.7\n" in out
    assert complete(tmp_path / "all.json")


async def test_adverse_conditions_with_a_draft_that_would_be_right(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    conditions = ["useless", "slow", "busy", "near"]
    options = ["--adverse", ",".join(conditions), "--quick", "--prompts", "1", "--max-tokens", "24"]
    options += ["--url", verifier.url, "--draft", str(draft), "--json", str(tmp_path / "all.json")]
    status, out, err = await bench(*options)
    assert status == 0, err
    assert "\nUnder 0.97x: " in out
    content = json.loads((tmp_path / "all.json").read_text("utf-8"))
    assert content["provenance"]["command"].startswith("draftwire bench --adverse")
    found = {condition["name"]: condition for condition in content["conditions"]}
    assert list(found) == conditions
    for condition in found.values():
        assert condition["complete"] is True
        assert condition["first_token"]["pairs"] == 10
        assert {condition["speed"]["within"], condition["first_token"]["within"]} <= {True, False}
        assert [mode["answers"] for mode in condition["modes"]] == [1, 1]
        assert all(mode["tokens"] == 24 for mode in condition["modes"])
    # The draft is the target itself: without a handicap it is always right.
    assert found["near"]["modes"][1]["acceptance_rate"] == 1
    useless = [answer["stats"] for answer in found["useless"]["answers"]]
    assert sum(stats["accepted"] for stats in useless) < 6  # of 24, as a random token is right now and then
    slow = [answer["stats"] for answer in found["slow"]["answers"] if answer["stats"]["draft_steps"]]
    assert all(stats["draft_seconds"] >= stats["draft_steps"] * 2 * 0.001 for stats in slow)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--adverse", "warp"], "--adverse"),
        (["--adverse", "--rtt", "5"], "--rtt"),
        (["--adverse", "--modes", "serial"], "--modes"),
        (["--adverse", "--reference"], "--reference"),
        (["--adverse", "--max-tokens", "1"], "--max-tokens"),
        (["--rtt", "fast"], "--rtt"),
        (["--rtt", "20000"], "--rtt"),
        (["--temperature", "-1"], "--temperature"),
        (["--modes", "warp"], "--modes"),
        (["--tasks", "song"], "--tasks"),
        (["--prompts", "0"], "--prompts"),
        (["--max-tokens", "1"], "--max-tokens"),
        (["--repeats", "0"], "--repeats"),
        (["--seed", "-1"], "--seed"),
        (["--jitter", "5-1"], "--jitter"),
        (["--bandwidth", "fast"], "--bandwidth"),
        (["--threads", "0"], "--threads"),
        (["--draft", "somewhere"], "--target"),
        (["--target", "somewhere"], "--target"),
        (["--api-key-file", "somewhere"], "--api-key-file"),
        (["--url", "ws://127.0.0.1:9", "--reference"], "--url"),
        (["--url", "ws://127.0.0.1:9", "--target", "somewhere"], "--url"),
        (["--json", "no/such/folder/all.json"], "--json"),
        (["--record", "."], "--record"),
        (["--json", "/proc/x.json"], "--json"),
        (["--json", "no.json", "--plot", "./no.json"], "--plot"),
    ],
)
@pytest.mark.timeout(GRACE)
def test_a_bad_value_is_wrong_usage_and_named(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"draftwire: error: {named}: ")
    assert err.count("\n") == 1


async def test_wrong_usage_as_a_program() -> None:
    status, out, err = await bench("--rtt", "fast")
    assert (status, out) == (2, "")
    assert err.startswith("draftwire: error: --rtt: ")
    assert err.count("\n") == 1


async def test_a_certificate_is_not_for_the_relay(draft: Path) -> None:
    status, _, err = await bench("--url", "wss://verifier.example", "--draft", str(draft))
    assert status == 2
    assert "--url: must be ws:// for a network to be emulated" in err


async def test_what_cannot_be_measured_at_all_is_one_line(
    verifier: RunningVerifier, draft: Path, tmp_path: Path
) -> None:
    nobody = await bench("--url", "ws://127.0.0.1:9", "--draft", str(draft))
    nothing = await bench(*small(verifier, tmp_path / "no-draft"))
    for (status, out, err), problem in [(nobody, "no verifier at"), (nothing, "no draft bundle at")]:
        assert (status, out) == (1, "")
        assert problem in err.splitlines()[-1]
        assert "Traceback" not in err


# --- both ends, with the demo pair ------------------------------------------------------------------------------------


def children_of(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that has ended since
            found += map(int, task.read_text("ascii").split())
    return found


def pair(target: Path, draft: Path) -> list[str]:
    return ["--target", str(target), "--draft", str(draft), "--rtt", "5", "--temperature", "0", "--prompts", "1"]


@pytest.mark.demo
async def test_runs_both_ends_and_the_references(
    demo_target_folder: Path, demo_draft_folder: Path, tmp_path: Path
) -> None:
    files = [tmp_path / "all.json", tmp_path / "chart.png"]
    outputs = ["--json", str(files[0]), "--plot", str(files[1])]
    options = ["--max-tokens", "8", "--modes", "serial,draftwire", "--reference"]
    status, out, err = await bench(*pair(demo_target_folder, demo_draft_folder), *options, *outputs)
    assert status == 0, err
    assert "Hugging Face" in out
    content: dict[str, Any] = json.loads(files[0].read_text("utf-8"))
    [condition] = content["conditions"]
    assert [mode["mode"] for mode in condition["modes"]] == MODES
    assert all(mode["tokens"] == 8 and mode["tokens_per_second"] > 0 for mode in condition["modes"])
    assert content["target"] == {**content["target"], "name": demo_target_folder.name, "dtype": "bfloat16"}
    [reference] = content["references"]
    assert reference["generate"]["tokens"] == 8
    assert "dequantized" in reference["assistant"]
    assert files[1].read_bytes().startswith(b"\x89PNG")


@pytest.mark.demo
async def test_a_sweep_of_the_pair(demo_target_folder: Path, demo_draft_folder: Path, tmp_path: Path) -> None:
    options = ["--sweep", "--quick", "--streams", "1,3", "--look-aheads", "2", "--prompts", "1", "--max-tokens", "40"]
    options += ["--target", str(demo_target_folder), "--draft", str(demo_draft_folder)]
    status, out, err = await bench(*options, "--json", str(tmp_path / "all.json"))
    assert status == 0, err
    rows = [line.split() for line in out.splitlines()[-2:]]
    cells = json.loads((tmp_path / "all.json").read_text("utf-8"))["sweep"]
    assert [(cell["streams"], cell["look_ahead"]) for cell in cells] == [(1, 2), (3, 2)]
    assert [row[:3] for row in rows] == [[str(cell["streams"]), f"{cell['gain']:.2f}x", "2"] for cell in cells]
    assert all(1 <= cell["tokens_a_pass"] <= 3 and 1 <= cell["computed"] <= 3 for cell in cells)
    assert all(cell["step_ms"] > 0 and cell["limit"] > 0 for cell in cells)


@pytest.mark.demo
async def test_an_adverse_condition_with_the_pair(
    demo_target_folder: Path, demo_draft_folder: Path, tmp_path: Path
) -> None:
    options = ["--adverse", "useless", "--quick", "--prompts", "1", "--max-tokens", "8"]
    options += ["--target", str(demo_target_folder), "--draft", str(demo_draft_folder)]
    status, out, err = await bench(*options, "--json", str(tmp_path / "all.json"))
    assert status == 0, err
    assert "Drafting under adverse conditions" in out
    [condition] = json.loads((tmp_path / "all.json").read_text("utf-8"))["conditions"]
    assert condition["complete"] is True
    assert condition["speed"]["middle"] > 0
    assert condition["first_token"]["pairs"] == 10
    assert condition["modes"][1]["acceptance_rate"] in (0, None)  # a random token of 49152


@pytest.mark.demo
@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task").exists(), reason="needs /proc")
async def test_leaves_no_verifier_behind(demo_target_folder: Path, demo_draft_folder: Path) -> None:
    """Whichever signal ends it; each takes seconds to load the pair, so both runs go on at once."""

    async def ended_by(number: signal.Signals) -> None:
        run = await Bench.start(*pair(demo_target_folder, demo_draft_folder), "--max-tokens", "200")
        await run.until_says("(1 of 1)")
        [verifier] = children_of(run.process.pid)
        run.process.send_signal(number)
        status, _, err = await run.end()
        assert status == 130, err
        assert "Traceback" not in err
        assert not Path(f"/proc/{verifier}").exists()

    await asyncio.gather(ended_by(signal.SIGINT), ended_by(signal.SIGTERM))


@pytest.mark.demo
@pytest.mark.skipif(sys.platform != "linux", reason="nothing but Linux ends a child whose parent is killed")
async def test_leaves_no_verifier_behind_even_where_it_is_killed(
    demo_target_folder: Path, demo_draft_folder: Path
) -> None:
    run = await Bench.start(*pair(demo_target_folder, demo_draft_folder), "--max-tokens", "200")
    await run.until_says("(1 of 1)")
    assert len(children_of(run.process.pid)) == 1
    run.process.kill()
    # The verifier holds the pipe for errors that it inherited, so the end of what comes through it is its end.
    status, _, _ = await run.end()
    assert status == -signal.SIGKILL
