"""The quickstart, run as a program."""

from __future__ import annotations

from pathlib import Path

from ..integration.running_verifier import running_verifier
from ..integration.table_targets import HeldTarget
from .conftest import CHAT_TEMPLATE, TABLE, environment, reference_answer, run_example

CONTEXT = 60


def make_target() -> HeldTarget:
    target = HeldTarget(**TABLE, eos_bias=-1e4)
    target.chat_template = CHAT_TEMPLATE
    target.let_go()
    return target


async def test_prints_the_answer_without_a_draft() -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        code, out, err = await run_example("quickstart.py", "hello", "there", env=environment(verifier.url))
    count = CONTEXT - len("hello there ")
    expected = reference_answer(target, "hello there ", count)
    assert out == f"{expected}\n\n{count} tokens, 0 of them guessed here; cloud-only\n"
    assert (code, err) == (0, "")


async def test_prints_the_same_answer_with_a_draft(draft: Path) -> None:
    target = make_target()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        code, out, err = await run_example("quickstart.py", "hello", "there", env=environment(verifier.url, draft))
    text, _, figures = out.partition("\n\n")
    assert text == reference_answer(target, "hello there ", CONTEXT - len("hello there "))
    assert "guessed here; " in figures
    assert "cloud-only" not in figures
    assert (code, err) == (0, "")


async def test_says_in_one_line_that_the_verifier_is_absent(absent: str) -> None:
    code, out, err = await run_example("quickstart.py", env=environment(absent))
    assert (code, out) == (1, "")
    assert err.startswith(f"quickstart: no verifier at {absent}")
    assert err.count("\n") == 1
