"""``draftwire doctor``, run as users run it: what it measures, what it predicts, what it says about what is wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.edge_client.wan_relay import WanRelay

from ..grace import wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_bundle import right_table, seal, write_bundle
from .table_targets import PacedTarget, endless_table

EXPECTED = ("expect about ", "this draft hardly pays here", "drafting slows answers down here")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


async def doctor(*arguments: str) -> tuple[int, str]:
    """Exit status and output; nothing is ever said on standard error to those who do not sit at a terminal."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "draftwire.edge_client.cli",
        "doctor",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await wait_for(process.communicate())
    assert err == b""
    assert process.returncode is not None
    return process.returncode, out.decode()


async def report_of(*arguments: str, status: int = 0) -> dict[str, Any]:
    ended, out = await doctor(*arguments, "--json")
    assert ended == status, out
    report: dict[str, Any] = json.loads(out)
    return report


def findings(report: dict[str, Any], severity: str) -> list[str]:
    return [advice["finding"] for advice in report["advice"] if advice["severity"] == severity]


@pytest.fixture
async def verifier() -> AsyncIterator[RunningVerifier]:
    target = PacedTarget(seconds=0.004, vocabulary_size=24, seed=5, eos_bias=-1e4)
    target.chat_template = TEMPLATE
    async with running_verifier(target) as running:
        yield running


# --- in order ---------------------------------------------------------------------------------------------------------


async def test_a_sound_pair_is_measured_and_predicted(verifier: RunningVerifier, drafts: dict[str, Path]) -> None:
    report = await report_of("--url", verifier.url, "--draft", str(drafts["right"]), "--threads", "1")
    assert report["problems"] == []
    assert report["verifier"]["target"] == verifier.target.info.name
    assert report["draft"]["matches"] is True
    assert report["samples"] == {"answers": 4, "tokens": 128, "temperature": 0.0, "quick": False}
    assert report["right"] == dict.fromkeys(("all", "chat", "code", "summary", "list"), 1.0)
    assert report["target_ms_per_step"] >= 4.0
    assert report["cloud_only_tokens_per_second"] <= 250.0
    for figure in ("rtt_ms", "draft_ms_per_token", "draft_ms_per_token_streaming", "drafting_tokens_per_second"):
        assert report[figure] > 0
    assert 0 < report["ratio"]["least"] <= report["ratio"]["middle"] <= report["ratio"]["most"]
    assert set(report["ttft_ms"]) == {"cloud_only", "drafting"}
    assert 0 < report["target_passes_per_token"] <= 1
    assert [row["rtt_ms"] for row in report["distances"]] == pytest.approx([5, 20, 50, 100, 200])
    for row in [report["predicted"], report["predicted_for_samples"], *report["distances"]]:
        assert row["drafting_tokens_per_second"] == pytest.approx(row["cloud_only_tokens_per_second"] * row["ratio"])
        assert row["cloud_only_tokens_per_second"] <= report["cloud_only_tokens_per_second"]
    assert findings(report, "problem") == []
    assert report["advice"][0]["finding"].startswith(EXPECTED)
    speeds = [row["ratio"] for row in report["distances"]]
    assert speeds == sorted(speeds, reverse=True)


async def test_the_same_in_words(verifier: RunningVerifier, drafts: dict[str, Path]) -> None:
    status, out = await doctor("--url", verifier.url, "--draft", str(drafts["right"]), "--quick")
    assert status == 0
    assert "2 greedy answers, 32 tokens in all" in out
    assert "that is few" in out
    assert "right        1.00 of the target's tokens, each guessed after right ones: chat 1.00, code 1.00" in out
    assert "predicted for here" in out
    assert "classic: draft, send, wait" in out
    assert "200.0 ms" in out
    assert "t/s" not in out
    assert "greedy answers" in out
    assert out.count("   -> ") >= 2
    *_, last = out.splitlines()
    warnings = sum(line.startswith("! ") for line in out.splitlines())
    few = "warning" if warnings == 1 else "warnings"
    assert last == (f"nothing is broken; {warnings} {few} above" if warnings else "all is in order")


async def test_a_draft_that_is_never_right_is_sound_and_told_so(
    verifier: RunningVerifier, drafts: dict[str, Path]
) -> None:
    report = await report_of("--url", verifier.url, "--draft", str(drafts["wrong"]), "--quick")
    assert report["right"]["all"] == 0.0
    assert any(finding.startswith("the draft is seldom right: 0.00") for finding in findings(report, "warning"))
    status, out = await doctor("--url", verifier.url, "--draft", str(drafts["wrong"]), "--quick")
    assert status == 0
    assert out.splitlines()[-1].startswith("nothing is broken; ")


async def test_without_a_draft_one_is_told_what_it_could_bring(verifier: RunningVerifier) -> None:
    report = await report_of("--url", verifier.url, "--quick")
    assert "predicted" not in report
    assert report["ttft_ms"].keys() == {"cloud_only"}
    (finding,) = findings(report, "note")[:1]
    assert finding.startswith("no draft was given; the target takes ")
    status, out = await doctor("--url", verifier.url, "--quick")
    assert status == 0
    assert "cloud-only" in out
    assert "no draft was given" in out


async def test_a_far_verifier_is_told_to_be_far(verifier: RunningVerifier, drafts: dict[str, Path]) -> None:
    async with WanRelay("127.0.0.1", verifier.port, delay=0.1) as relay:
        report = await report_of("--url", f"ws://127.0.0.1:{relay.port}", "--draft", str(drafts["right"]), "--quick")
    assert report["rtt_ms"] >= 200
    assert any(finding.startswith("the round trip decides: ") for finding in findings(report, "warning"))


async def test_answers_that_end_by_themselves_are_judged_up_to_there(tmp_path: Path) -> None:
    """The draft wants an end after everything: it is right there, and wrong at each token before."""
    target = PacedTarget(seconds=0.002, vocabulary_size=24, seed=5, eos_bias=3.0)
    table = np.zeros_like(right_table(target))
    table[:, 0] = 1.0
    draft = write_bundle(tmp_path / "draft", target, table)
    async with running_verifier(target) as running:
        report = await report_of("--url", running.url, "--draft", str(draft), "--quick")
    for share in (report["right"]["chat"], report["right"]["code"]):
        assert share in {0.0, *(1 / length for length in range(1, 17))}


# --- something is broken ----------------------------------------------------------------------------------------------


async def test_another_vocabulary(verifier: RunningVerifier, tmp_path: Path) -> None:
    other = endless_table(vocabulary_size=12)
    stranger = write_bundle(tmp_path / "stranger", other, right_table(other))
    report = await report_of("--url", verifier.url, "--draft", str(stranger), "--quick", status=1)
    assert "does not share the vocabulary" in report["problems"][0]
    assert report["draft"]["matches"] is False
    assert findings(report, "problem") == report["problems"]
    assert "fingerprint" in report["advice"][0]["action"]
    assert report["cloud_only_tokens_per_second"] > 0


async def test_a_corrupt_draft(verifier: RunningVerifier, drafts: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(drafts["right"], broken)
    content = bytearray((broken / "model.onnx").read_bytes())
    content[-1] ^= 1
    (broken / "model.onnx").write_bytes(content)
    report = await report_of("--url", verifier.url, "--draft", str(broken), "--quick", status=1)
    assert findings(report, "problem") == report["problems"]
    assert "all of its files" in report["advice"][0]["action"]
    assert "predicted" not in report


async def test_no_draft_where_one_was_named(verifier: RunningVerifier, tmp_path: Path) -> None:
    status, out = await doctor("--url", verifier.url, "--draft", str(tmp_path), "--quick")
    assert status == 1
    assert "!! no draft bundle at" in out
    assert out.count("no draft bundle at") == 1
    assert out.splitlines()[-1] == "not in order; 1 problem above"


async def test_a_draft_that_is_no_model(verifier: RunningVerifier, drafts: dict[str, Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(drafts["right"], broken)
    (broken / "model.onnx").write_bytes(b"no graph")
    seal(broken)
    report = await report_of("--url", verifier.url, "--draft", str(broken), "--quick", status=1)
    assert findings(report, "problem") == report["problems"]
    assert "export it again" in report["advice"][0]["action"]


async def test_a_draft_that_fails_while_it_runs(verifier: RunningVerifier, tmp_path: Path) -> None:
    table = np.full_like(right_table(verifier.target), np.nan)
    draft = write_bundle(tmp_path / "draft", verifier.target, table)
    report = await report_of("--url", verifier.url, "--draft", str(draft), "--quick", status=1)
    assert findings(report, "problem") == report["problems"]
    assert "draftwire-export check" in report["advice"][0]["action"]
    assert report["cloud_only_tokens_per_second"] > 0


async def test_nobody_there() -> None:
    report = await report_of("--url", "ws://127.0.0.1:9", status=1)
    assert "no verifier at ws://127.0.0.1:9" in report["problems"][0]
    assert "advice" not in report
    status, out = await doctor("--url", "ws://127.0.0.1:9")
    assert status == 1
    assert out.splitlines()[-2].startswith("problem      no verifier at ws://127.0.0.1:9")


async def test_a_verifier_that_refuses_every_stream(drafts: dict[str, Path]) -> None:
    """Its context is too short for any answer; it answers the handshake and pings, and that is told all the same."""
    target = PacedTarget(seconds=0.002, vocabulary_size=24, seed=5, eos_bias=-1e4, max_context=8)
    async with running_verifier(target) as running:
        report = await report_of("--url", running.url, "--draft", str(drafts["right"]), status=1)
    assert report["rtt_ms"] > 0
    assert "8 tokens" in report["problems"][0]
    assert "samples" not in report


# --- real weights -----------------------------------------------------------------------------------------------------


@pytest.fixture
def demo_target(demo_target_folder: Path) -> Iterator[TransformersTarget]:
    yield TransformersTarget.load(str(demo_target_folder), dtype="bfloat16", threads=1)
    gc.collect()


@pytest.mark.demo
async def test_the_demo_pair(demo_target: TransformersTarget, demo_draft_folder: Path) -> None:
    async with running_verifier(demo_target) as running:
        options = ("--draft", str(demo_draft_folder), "--threads", "1", "--quick")
        report = await report_of("--url", running.url, *options)
    assert report["problems"] == []
    assert report["samples"]["answers"] == 2
    assert 0.4 < report["right"]["all"] < 0.95
    assert 0.1 < report["acceptance_rate"] <= 1.0
    assert report["accepted_by_position"] == sorted(report["accepted_by_position"], reverse=True)
    assert report["bytes_up_per_token"] < 64
    near, *_, far = report["distances"]
    assert near["ratio"] >= far["ratio"]
    for row in report["distances"]:
        assert row["ratio"] >= row["serial_ratio"]
