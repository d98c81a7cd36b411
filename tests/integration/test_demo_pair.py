"""The real pair, over a real socket: what is committed is what the target alone generates."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.edge_client import AsyncEdgeClient, Result
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from .running_verifier import RunningVerifier, running_verifier

pytestmark = pytest.mark.demo

COUNT = 100
THREADS = 1  # of the target; the drafts have the rest, and threads that wait for a busy core cost more than they bring
DEVICES = 6  # a device drafts for one stream at a time, and streams that share the target's steps take less of it
HALF_PRECISION_TOLERANCE = 0.5
"""In bfloat16, a committed token may differ from the reference's best only where their logits are closer than this.

The logits here lie between 16 and 32, where neighbouring bfloat16 numbers are 0.125 apart.
"""

QUESTIONS = [
    "Why is the sky blue?",
    "Write a short story about a robot who learns to paint.",
    "Write a Python function that reverses a linked list.",
    "List ten fruits, one a line.",
    "Explain how a bicycle stays upright.",
]
TEXTS = [
    "The quick brown fox",
    "In 1969, the first humans",
    "def fibonacci(n):\n",
    "Q: What is the capital of France?\nA:",
    "Once upon a time, in a village by the sea, there lived",
]


@pytest.fixture(scope="module")
def prompts(demo_target_folder: Path) -> list[list[int]]:
    """Five questions through the chat template, and five texts to be continued."""
    tokenizer = AutoTokenizer.from_pretrained(demo_target_folder)
    asked = [
        tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
        for question in QUESTIONS
    ]
    asked = [list(ids["input_ids"]) if hasattr(ids, "keys") else list(ids) for ids in asked]
    return asked + [list(tokenizer(text)["input_ids"]) for text in TEXTS]


class Reference:
    """Transformers alone: the model loaded in its own way, and its own ``generate``."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        torch.set_num_threads(THREADS)
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        eos = self._model.generation_config.eos_token_id
        self._eos = eos if isinstance(eos, list) else [eos]

    def generate(self, prompts: list[list[int]], count: int) -> list[tuple[int, ...]]:
        """Greedy answers, the end-of-sequence id included."""
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        config = GenerationConfig(
            do_sample=False, max_new_tokens=count, eos_token_id=self._eos, pad_token_id=self._eos[0]
        )
        with torch.inference_mode():
            answers = self._model.generate(ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        return [self._cut(answer) for answer in answers]

    def shortfalls(self, prompt: list[int], answer: tuple[int, ...]) -> list[float]:
        """By how much the logit of each of the answer's tokens is below the best one at its position."""
        with torch.inference_mode():
            logits = self._model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, torch.tensor(answer)[:, None])[:, 0]
        shortfalls: list[float] = (logits.max(dim=1).values - chosen).tolist()
        return shortfalls

    def _cut(self, answer: list[int]) -> tuple[int, ...]:
        ends = [position for position, token in enumerate(answer) if token in self._eos]
        return tuple(answer[: ends[0] + 1] if ends else answer)


@pytest.fixture(scope="module")
def reference(demo_target_folder: Path, prompts: list[list[int]]) -> list[tuple[int, ...]]:
    return Reference(demo_target_folder, torch.float32).generate(prompts, COUNT)


@pytest.fixture(scope="module")
def target(demo_target_folder: Path) -> Iterator[TransformersTarget]:
    yield TransformersTarget.load(str(demo_target_folder), dtype="float32", threads=THREADS)
    gc.collect()


async def generate_all(
    verifier: RunningVerifier, draft: Path | None, jobs: list[tuple[list[int], dict[str, Any]]]
) -> list[Result]:
    """Results of the jobs in order, as many at once as there are devices; cloud-only ones all at once."""
    results: dict[int, Result] = {}
    waiting = iter(enumerate(jobs))

    async def work(client: AsyncEdgeClient) -> None:
        await client.wait_for_draft()
        for number, (prompt, options) in waiting:
            results[number] = await client.generate(prompt, **options)

    count = min(DEVICES, len(jobs)) if draft else len(jobs)
    clients = [AsyncEdgeClient(verifier.url, draft=draft, threads=1) for _ in range(count)]
    try:
        await asyncio.gather(*map(work, clients))
    finally:
        await asyncio.gather(*(client.close() for client in clients))
    return [results[number] for number in range(len(jobs))]


async def test_greedy_is_what_transformers_generates(
    target: TransformersTarget, demo_draft_folder: Path, prompts: list[list[int]], reference: list[tuple[int, ...]]
) -> None:
    """Ten prompts, with drafts at three look-aheads and without any."""
    # A single token ahead is seldom there in time, so that steps wait for it.
    ways = [{"look_ahead": 1, "policy": "cost"}, {"look_ahead": 4}, {"look_ahead": 8}]
    jobs = [(prompt, {"max_tokens": COUNT, **way}) for way in ways for prompt in prompts]
    async with running_verifier(target) as verifier:
        plain, drafted = await asyncio.gather(
            generate_all(verifier, None, [(prompt, {"max_tokens": COUNT}) for prompt in prompts]),
            generate_all(verifier, demo_draft_folder, jobs),
        )
    assert [result.token_ids for result in plain] == reference
    assert [result.token_ids for result in drafted] == reference * 3
    assert sum(len(answer) for answer in reference) > 5 * COUNT
    for part in (drafted[:10], drafted[10:20], drafted[20:]):
        accepted, tested = (sum(getattr(result.stats, name) for result in part) for name in ("accepted", "drafted"))
        assert accepted > 0.2 * tested > 0


async def test_coupled_is_a_function_of_the_seed(
    target: TransformersTarget, demo_draft_folder: Path, prompts: list[list[int]]
) -> None:
    settings = [{"temperature": 0.7, "seed": 12}, {"temperature": 1.0, "seed": 2**63, "top_p": 0.9, "top_k": 50}]
    chosen = [prompts[1], prompts[9]]
    jobs = [(prompt, {"max_tokens": 40, **options}) for prompt, options in zip(chosen, settings, strict=True)]
    slow = [(prompt, {**options, "look_ahead": 2, "policy": "cost"}) for prompt, options in jobs]
    async with running_verifier(target) as verifier:
        plain, drafted = await asyncio.gather(
            generate_all(verifier, None, jobs), generate_all(verifier, demo_draft_folder, jobs + slow)
        )
    assert [result.token_ids for result in drafted] == [result.token_ids for result in plain] * 2
    assert all(result.stats.accepted > 0 for result in drafted)
    assert len({result.token_ids for result in plain}) == 2


async def test_half_precision_parts_only_at_near_ties(
    demo_target_folder: Path, demo_draft_folder: Path, prompts: list[list[int]]
) -> None:
    """At every position the token committed is the reference's best, or nearly as good."""
    target = TransformersTarget.load(str(demo_target_folder), dtype="bfloat16", threads=THREADS)
    chosen = prompts[:2] + prompts[5:7]
    async with running_verifier(target) as verifier:
        jobs = [(prompt, {"max_tokens": 40}) for prompt in chosen]
        results = await generate_all(verifier, demo_draft_folder, jobs)
    assert all(result.stats.accepted > 0 for result in results)
    reference = Reference(demo_target_folder, torch.bfloat16)
    shortfalls = np.concatenate(
        [reference.shortfalls(prompt, result.token_ids) for prompt, result in zip(chosen, results, strict=True)]
    )
    assert shortfalls.max() < HALF_PRECISION_TOLERANCE
    assert np.mean(shortfalls == 0) > 0.9  # and near ties are rare, or this would say little
