"""The demo target by itself says what transformers makes it say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from draftwire.cloud_verifier.targets.target import Block
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.demo


@dataclass(frozen=True)
class Spoken:
    """The demo target, and what transformers itself makes it say."""

    target: TransformersTarget
    prompts: list[list[int]]
    wanted: list[list[int]]


@pytest.fixture(scope="module")
def spoken(demo_target_folder: Path) -> Spoken:
    target = TransformersTarget.load(str(demo_target_folder), dtype="float32")
    parsed = Tokenizer.from_str(target.tokenizer_json)
    model = AutoModelForCausalLM.from_pretrained(str(demo_target_folder), dtype=torch.float32)
    model.generation_config.eos_token_id = None  # 40 tokens, come what may
    questions = ("The capital of France is", "def fibonacci(n):", "Once upon a time, in a small village,")
    prompts = [parsed.encode(question).ids for question in questions]
    wanted = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones((1, len(prompt)), dtype=torch.int64),
            max_new_tokens=40,
            do_sample=False,
        )
        wanted.append(output[0, len(prompt) :].tolist())
    return Spoken(target, prompts, wanted)


@pytest.mark.parametrize("size", [1, 4])
def test_greedy_text_of_the_demo_target_equals_generate(spoken: Spoken, size: int) -> None:
    target, prompts, wanted = spoken.target, spoken.prompts, spoken.wanted
    # All three at once; blocks of 4 feed the known continuation, as accepted drafts would be.
    found: list[list[int]] = []
    blocks = []
    for stream, prompt in enumerate(prompts):
        target.open(stream, len(prompt) + 40)
        blocks.append(Block(stream, 0, prompt))
    for rows in target.step(blocks):
        found.append([int(rows[-1].argmax())])
    for start in range(0, 39, size):
        blocks = [
            Block(
                stream, len(prompt) + start, wanted[stream][start : min(start + size, 39)], rows=min(size, 39 - start)
            )
            for stream, prompt in enumerate(prompts)
        ]
        for text, rows in zip(found, target.step(blocks), strict=True):
            text.extend(rows.argmax(-1).tolist())
    for stream in range(len(prompts)):
        target.close(stream)
    assert found == wanted
