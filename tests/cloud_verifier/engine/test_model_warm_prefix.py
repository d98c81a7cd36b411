"""A prompt whose prefix is known, on real models: the same answer, and the same drafts accepted, as when it is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import CommitReport, Observer
from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.engine.stream import VerifierStream, Work
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.messages import Limits, Opened
from draftwire.protocol.sampling import SamplingParams
from transformers import AutoTokenizer

from ..conftest import MakeModel
from .engine_rig import Device

TOKENS = 18
AHEAD = 4
LIMITS = Limits(max_context=1024, max_streams=2, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
GREEDY, COUPLED = SamplingParams(), SamplingParams(temperature=0.8)
SYSTEM = (
    "You are a helpful assistant in a bicycle shop. Answer in one short sentence, and name a price where there is one."
)


class TimelessScheduler(Scheduler):
    """Learns nothing of how long steps take, so that equal drafts make equal steps."""

    def stepped(self, work: Sequence[Work], seconds: float) -> None:
        """See :meth:`Scheduler.stepped`."""


@dataclass
class Turn:
    """What one answer was, and what became of its drafts step by step."""

    answer: list[int]
    cached: int
    blocks: list[tuple[int, int]] = field(default_factory=list)
    """Drafted and accepted in each step."""

    @property
    def by_position(self) -> list[int]:
        """How many drafts were accepted up to each position."""
        return [sum(accepted > position for _, accepted in self.blocks) for position in range(AHEAD)]


class Reports(Observer):
    """Remembers drafted and accepted of every commit."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        del stream
        self.blocks.append((report.drafted, report.accepted))


class Chat:
    """Asks one engine one thing after another."""

    def __init__(self, target: TransformersTarget, *, prefix_tokens: int = 1 << 16) -> None:
        self._reports = Reports()
        scheduler = TimelessScheduler(prefill_chunk=50)
        self.engine = Engine(
            target, limits=LIMITS, scheduler=scheduler, observer=self._reports, prefix_tokens=prefix_tokens
        )
        self._device = Device(self.engine)
        self._turns = 0

    def ask(
        self, prompt: Sequence[int], params: SamplingParams, draft: Sequence[int] = (), *, tokens: int = TOKENS
    ) -> Turn:
        """One answer. ``draft`` is what the device guesses; every fourth token of it is replaced by a wrong one."""
        self._turns += 1
        self._reports.blocks.clear()
        device, stream, path = self._device, self._turns, 0
        device.open(stream, prompt=prompt, params=params, max_tokens=tokens, seed=11, drafting=bool(draft))
        self.engine.step()
        while self.engine.active_streams:
            at = len(device.answer(stream))
            if draft and at:
                path += 1
                ahead = [token ^ (index % 4 == 3) for index, token in enumerate(draft)][at : at + AHEAD]
                if ahead:
                    device.draft(len(device.sequences[stream]), ahead, stream=stream, path=path)
            self.engine.step()
        (opened,) = [each for each in device.messages if isinstance(each, Opened) and each.stream == stream]
        end = device.end(stream)
        turn = Turn(device.answer(stream), opened.cached, list(self._reports.blocks))
        assert sum(drafted for drafted, _ in turn.blocks) == end.drafted_tokens
        assert sum(accepted for _, accepted in turn.blocks) == end.accepted_tokens
        return turn


@dataclass(frozen=True)
class Case:
    """A model, and two turns of a chat with it: the second prompt goes on from the first one's answer."""

    folder: str
    roomy: TransformersTarget
    first: list[int]
    question: list[int]

    @classmethod
    def of(cls, folder: str, first: list[int], question: list[int]) -> Case:
        return cls(folder, TransformersTarget.load(folder, dtype="float32", threads=1), first, question)

    def limited(self, kv_tokens: int) -> TransformersTarget:
        """The same model with memory for so many tokens."""
        kv_memory = kv_tokens * self.roomy._cache.token_bytes
        return TransformersTarget.load(self.folder, dtype="float32", threads=1, kv_memory=kv_memory)


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=pytest.mark.demo)])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    if request.param == "tiny":
        make_model: MakeModel = request.getfixturevalue("make_model")
        first = [3 + (index * 31 + index // 7) % 90 for index in range(70)]
        yield Case.of(make_model("llama"), first, [5, 9, 6, 5, 80])
        return
    folder: Path = request.getfixturevalue("demo_target_folder")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "What is a new chain?"}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    more = "<|im_end|>\n<|im_start|>user\nAnd two of them?<|im_end|>\n<|im_start|>assistant\n"
    yield Case.of(str(folder), *(list(tokenizer(part)["input_ids"]) for part in (text, more)))


def check_same(warm: Turn, cold: Turn) -> None:
    assert warm.answer == cold.answer
    assert warm.blocks == cold.blocks
    assert warm.by_position == cold.by_position
    assert cold.by_position[0] > 1  # or the drafts would say little
    assert sum(drafted for drafted, _ in cold.blocks) > sum(accepted for _, accepted in cold.blocks)


def test_a_warm_cache_changes_neither_answer_nor_acceptance(case: Case) -> None:
    plain = Chat(case.roomy, prefix_tokens=0)
    chat = Chat(case.roomy)
    guess = plain.ask(case.first, GREEDY).answer
    cold = chat.ask(case.first, GREEDY, guess)
    warm = chat.ask(case.first, GREEDY, guess)
    assert cold.cached == 0
    assert warm.cached == (len(case.first) - 1) // BLOCK_TOKENS * BLOCK_TOKENS > 0
    assert cold.answer == guess
    check_same(warm, cold)

    later = [*case.first, *guess, *case.question]
    guess = plain.ask(later, COUPLED).answer
    cold, warm = plain.ask(later, COUPLED, guess), chat.ask(later, COUPLED, guess)
    assert cold.cached == 0
    assert warm.cached > len(case.first)  # the answer of the turn before is known as well
    check_same(warm, cold)


def test_nor_does_what_was_forgotten_meanwhile(case: Case) -> None:
    """In memory for two streams, what others say drives this one's prefix out, and it is learned anew."""
    chat = Chat(case.limited(660))
    guess = chat.ask(case.first, GREEDY).answer
    warm = chat.ask(case.first, GREEDY, guess)
    assert warm.cached > 0
    for other in range(6):
        chat.ask([other + 3, *case.first, *case.first, *case.first][:120], GREEDY, tokens=1)
    forgotten = chat.ask(case.first, GREEDY, guess)
    again = chat.ask(case.first, GREEDY, guess)
    assert forgotten.cached == 0 < again.cached
    check_same(forgotten, warm)
    check_same(again, warm)
