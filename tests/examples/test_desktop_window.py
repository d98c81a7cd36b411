"""The window example, run as a program on a real (if virtual) display by ``window_driver.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..integration.running_verifier import running_verifier
from ..integration.table_targets import HeldTarget
from .conftest import CHAT_TEMPLATE, TABLE, environment, reference_answer, running

CONTEXT = 200
PROMPT = "hello "  # as the template writes it
COUNT = CONTEXT - len(PROMPT)
DRIVER = str(Path(__file__).with_name("window_driver.py"))


def make_target() -> HeldTarget:
    target = HeldTarget(**TABLE, eos_bias=-1e4)
    target.chat_template = CHAT_TEMPLATE
    return target


async def drive(scenario: str, env: dict[str, str], target: HeldTarget) -> list[dict[str, Any]]:
    """Run a scenario to its end: the program must end well, without a word of complaint. Returns its reports."""
    reports = []
    async with running(DRIVER, "examples/desktop_window.py", scenario, env=env) as process:
        assert process.stdout is not None
        async for line in process.stdout:
            match line.decode().split(maxsplit=1):
                case ["step"]:
                    target.allow(1)
                case ["go"]:
                    target.let_go()
                case ["report", report]:
                    reports.append(json.loads(report))
        _, err = await process.communicate()
        assert (process.returncode, err.decode()) == (0, "")
    return reports


async def test_tokens_show_as_they_come_and_the_window_lives_between_them(display: str) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        under_way, ended = await drive("answer", {**environment(verifier.url), "DISPLAY": display}, target)
    whole = reference_answer(target, PROMPT, COUNT)
    assert under_way["answer"] == whole[:5]
    assert under_way["typed"] == "meanwhile"
    assert under_way["status"] == "Answering, cloud-only"
    assert ended["answer"] == f"{whole}\n"
    assert ended["typed"] == "meanwhile"
    assert ended["status"] == f"{COUNT} tokens, 0 guessed, cloud-only"


async def test_colours_what_the_device_had_guessed(display: str, draft: Path) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        env = {**environment(verifier.url, draft), "DISPLAY": display}
        (ended,) = await drive("guess", env, target)
    assert ended["answer"] == reference_answer(target, PROMPT, COUNT) + "\n"
    assert 0 < len(ended["guessed"]) < COUNT
    assert ended["status"] == f"{COUNT} tokens, {len(ended['guessed'])} guessed, drafting"


async def test_a_draft_that_cannot_be_used_is_told_in_the_status(display: str, tmp_path: Path) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        env = {**environment(verifier.url, tmp_path / "nowhere"), "DISPLAY": display}
        under_way, ended = await drive("answer", env, target)
    assert under_way["status"].startswith("Answering, cloud-only: ")
    assert "nowhere" in under_way["status"]
    assert ended["status"].startswith(f"{COUNT} tokens, 0 guessed, cloud-only: ")
    assert ended["answer"].endswith(reference_answer(target, PROMPT, COUNT) + "\n")


async def test_stop_cancels_at_the_verifier_and_leaves_the_window_usable(display: str) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        stopped, at_once, ended = await drive("stop", {**environment(verifier.url), "DISPLAY": display}, target)
        await target.until(lambda: len(target.closed) == target.opened)
        assert verifier.engine.counters.committed < 2 * COUNT, "a stopped answer is not computed to its end"
    whole = reference_answer(target, PROMPT, COUNT)
    assert stopped["answer"] == f"{whole[:3]}\n"
    assert stopped["status"] == at_once["status"] == "Stopped."
    assert ended["answer"] == f"{whole}\n"


async def test_closing_the_window_while_it_streams_ends_cleanly(display: str) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        assert await drive("close", {**environment(verifier.url), "DISPLAY": display}, target) == []
        target.let_go()
        await target.until(lambda: target.closed == [1])
        assert verifier.engine.counters.committed < COUNT


async def test_says_that_the_verifier_is_absent_and_stays_usable(display: str, absent: str) -> None:
    reports = await drive("fail", {**environment(absent), "DISPLAY": display}, make_target())
    assert len(reports) == 2
    for report in reports:
        assert report["status"].startswith(f"no verifier at {absent}")


async def test_says_in_one_line_that_there_is_no_display(display: str) -> None:
    del display  # only for its conditions
    async with running(
        "examples/desktop_window.py", env={**environment("ws://127.0.0.1:1"), "DISPLAY": ":65000"}
    ) as it:
        out, err = await it.communicate()
    assert (it.returncode, out) == (1, b"")
    assert err.decode().startswith("desktop_window: ")
    assert err.count(b"\n") == 1
