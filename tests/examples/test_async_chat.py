"""The chat loop, run as a program that reads its standard input."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import SavedKv

from ..integration.running_verifier import running_verifier
from .conftest import CHAT_TEMPLATE, environment, reference_answer, run_example, running

CONTEXT = 400


class ChattyTarget(TableTarget):
    """Ends its answers by itself, and notes how much of an earlier turn each later one took over."""

    def __init__(self) -> None:
        super().__init__(vocabulary_size=64, seed=23, eos_bias=3.5)
        self.chat_template = CHAT_TEMPLATE
        self.restored: list[int] = []

    def restore(self, stream: int, blocks: Sequence[SavedKv]) -> None:
        """See :meth:`Target.restore`."""
        super().restore(stream, blocks)
        self.restored.append(self.length(stream))


def conversation(target: TableTarget, turns: list[str]) -> tuple[list[str], list[int]]:
    """The answers to ``turns``, and how many tokens of the earlier turns each later prompt starts with."""
    text, answers, shared = "", [], []
    for turn in turns:
        text += f"{turn} "
        answers.append(reference_answer(target, text, CONTEXT - len(text)))
        text += answers[-1]
        shared.append(len(text))
        text += " "
    assert all(len(answer) > 1 for answer in answers), "a table whose answers test something"
    assert len(text) < CONTEXT, "a table whose answers end by themselves"
    return answers, shared[:-1]


async def test_answers_turn_by_turn_and_sends_only_what_is_new() -> None:
    target = ChattyTarget()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        code, out, err = await run_example(
            "async_chat.py", env=environment(verifier.url), lines="good morning\n\nwhat now\nbye\n"
        )
    answers, shared = conversation(target, ["good morning", "what now", "bye"])
    assert out.splitlines() == answers
    assert target.restored == [0, *(length // BLOCK_TOKENS * BLOCK_TOKENS for length in shared)]
    assert err == f"Talking to {target.info.name}; the end of input leaves.\n"
    assert code == 0


async def test_goes_on_without_a_turn_that_the_verifier_refuses() -> None:
    target = ChattyTarget()
    async with running_verifier(target, max_context=CONTEXT) as verifier:
        lines = f"good morning\n{'a' * CONTEXT}\nbye\n"
        code, out, err = await run_example("async_chat.py", env=environment(verifier.url), lines=lines)
    answers, _ = conversation(target, ["good morning", "bye"])
    assert out.split() == " ".join(answers).split()
    refusal = err.splitlines()[1]
    assert refusal.startswith("async_chat: ")
    assert f"exceed the context of {CONTEXT}" in refusal
    assert len(err.splitlines()) == 2
    assert code == 0


async def test_an_interrupt_at_the_prompt_ends_it_quietly() -> None:
    async with (
        running_verifier(ChattyTarget(), max_context=CONTEXT) as verifier,
        running("examples/async_chat.py", env=environment(verifier.url)) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"hello\n")
        await process.stdout.readline()  # answered, so it waits for the next line now
        await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
        assert await process.stderr.read() == b""


async def test_says_in_one_line_that_the_verifier_is_absent(absent: str) -> None:
    code, out, err = await run_example("async_chat.py", env=environment(absent), lines="hello\n")
    assert (code, out) == (1, "")
    assert err.startswith(f"async_chat: no verifier at {absent}")
    assert err.count("\n") == 1
