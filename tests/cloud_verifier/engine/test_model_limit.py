"""A real model up to the last position it has: it says what transformers says there, and one more is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import Observer, StepReport
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import EndReason, Limits
from transformers import AutoModelForCausalLM, GenerationConfig

from ..conftest import MakeModel
from .engine_rig import Device

LIMIT = 1024
"""``max_position_embeddings`` of the models here."""
ANSWER = 90
PROMPT = [3 + (index * 31 + index // 7) % 90 for index in range(LIMIT - ANSWER)]


@pytest.fixture(scope="module")
def expected(make_model: MakeModel) -> list[int]:
    """By transformers' own ``generate``."""
    model: Any = AutoModelForCausalLM.from_pretrained(make_model("llama"), dtype=torch.float32)
    config = GenerationConfig(do_sample=False, max_new_tokens=ANSWER, eos_token_id=None, pad_token_id=0)
    ids = torch.tensor([PROMPT])
    with torch.inference_mode():
        answer = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0, len(PROMPT) :]
    assert len(answer) == ANSWER
    tokens: list[int] = answer.tolist()
    assert len(set(tokens)) > ANSWER / 4  # text that a wrong position would change
    return tokens


class Chunks(Observer):
    """How much of the prompt each step read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def stepped(self, report: StepReport) -> None:
        """See :class:`Observer`."""
        if report.prompt_tokens:
            self.read.append(report.prompt_tokens)


def make(folder: str, kv_tokens: int | None, *, chunk: int = 100) -> tuple[Engine, Device, Chunks]:
    target = TransformersTarget.load(folder, dtype="float32", threads=1)
    assert target.info.max_context == LIMIT
    if kv_tokens is not None:
        budget = kv_tokens * target._cache.token_bytes
        target = TransformersTarget.load(folder, dtype="float32", threads=1, kv_memory=budget)
    limits = Limits(
        max_context=target.info.max_context,
        max_streams=4,
        max_message_bytes=65536,
        max_draft_tokens=64,
        max_backlog=64,
    )
    chunks = Chunks()
    engine = Engine(target, limits=limits, scheduler=Scheduler(prefill_chunk=chunk), observer=chunks)
    return engine, Device(engine), chunks


@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "drafted"])
@pytest.mark.parametrize("kv_tokens", [None, LIMIT], ids=["room for all", "just enough memory"])
def test_prompt_and_answer_fill_the_context(
    make_model: MakeModel, expected: list[int], kv_tokens: int | None, drafting: bool
) -> None:
    """The prompt in pieces; with drafts that go up to the last position and, as far as they may be sent, beyond."""
    engine, device, chunks = make(make_model("llama"), kv_tokens)
    device.open(1, prompt=PROMPT, max_tokens=ANSWER, drafting=drafting)
    engine.step()
    path = 0
    while engine.active_streams:
        at = len(device.answer())
        if drafting and at:
            path += 1
            ahead = [*expected[at : at + 7], 5, 5]
            if path % 3 == 0:
                ahead[2] = 5 if ahead[2] != 5 else 6
            device.draft(len(device.sequences[1]), ahead, path=path)
        engine.step()
    assert device.answer() == expected
    assert len(device.sequences[1]) == LIMIT
    assert device.end().reason is EndReason.LENGTH
    assert (device.end().accepted_tokens > ANSWER / 3) is drafting
    assert max(chunks.read) <= 100
    assert sum(chunks.read) >= len(PROMPT) - 1


@pytest.mark.parametrize("kv_tokens", [None, LIMIT], ids=["room for all", "just enough memory"])
def test_one_token_more_is_refused(make_model: MakeModel, kv_tokens: int | None) -> None:
    engine, device, chunks = make(make_model("llama"), kv_tokens)
    device.open(1, prompt=PROMPT, max_tokens=ANSWER + 1)
    device.open(2, prompt=[*PROMPT, 5], max_tokens=ANSWER)
    device.open(3, prompt=PROMPT * 2, max_tokens=1)
    engine.step()
    for stream in (1, 2, 3):
        assert device.error(stream).code is ErrorCode.PROMPT_TOO_LONG
        assert str(LIMIT) in device.error(stream).message
    assert not chunks.read


def test_memory_for_one_token_less_shortens_the_context(make_model: MakeModel) -> None:
    engine, device, _ = make(make_model("llama"), LIMIT - 1)
    device.open(1, prompt=PROMPT, max_tokens=ANSWER)
    engine.step()
    assert device.error().code is ErrorCode.PROMPT_TOO_LONG
    assert str(LIMIT - 1) in device.error().message
