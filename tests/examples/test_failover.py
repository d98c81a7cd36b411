"""The failover example, run as a program: a verifier is lost in mid-answer, and then there is none."""

from __future__ import annotations

from pathlib import Path

from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client.wan_relay import Cut, WanRelay

from ..integration.running_verifier import running_verifier
from ..integration.table_targets import HeldTarget
from .conftest import CHAT_TEMPLATE, TABLE, environment, reference_answer, run_example

PROMPT = "hello there "  # as the template writes it
CONTEXT = 120


async def test_goes_on_at_the_next_address() -> None:
    target = HeldTarget(**TABLE, eos_bias=-1e4)
    target.chat_template = CHAT_TEMPLATE
    target.let_go()
    async with (
        running_verifier(target, max_context=CONTEXT) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.0, cuts=[Cut(after_bytes=700)]) as relay,
    ):
        lost = f"ws://127.0.0.1:{relay.port}"
        code, out, err = await run_example("failover.py", "hello there", lost, verifier.url, env=environment(lost))
    count = CONTEXT - len(PROMPT)
    assert out == f"{reference_answer(target, PROMPT, count)}\n\n{count} tokens, 0 of them the draft's alone\n"
    assert code == 0
    assert err.count("\n") <= 1
    assert relay.counters.cuts == 1


async def test_goes_on_without_any_verifier(draft: Path, absent: str) -> None:
    code, out, err = await run_example("failover.py", "hello there", absent, env=environment(absent, draft))
    text, _, figures = out.partition("\n\n")
    alone = reference_answer(TableTarget(**TABLE, eos_bias=-1e4), PROMPT, 512)
    assert text.replace("\x1b[2m", "").replace("\x1b[0m", "") == alone
    assert figures == "512 tokens, 512 of them the draft's alone\n"
    assert (code, err.count("\n")) == (0, 1)
    assert err.startswith(f"[no verifier at {absent}")


async def test_says_in_one_line_that_there_is_none(absent: str) -> None:
    code, out, err = await run_example(
        "failover.py", "hello there", absent, "ws://127.0.0.1:9", env=environment(absent)
    )
    assert (code, out) == (1, "")
    assert err.startswith("failover: none of the 2 verifiers can be used: no verifier at ")
    assert err.count("\n") == 1
