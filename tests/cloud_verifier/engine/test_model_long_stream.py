"""One stream of two thousand tokens on a real model: it holds what its tokens take, and no step copies all of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import draftwire.cloud_verifier
import pytest
import torch
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.targets.slot_pool import SlotPool
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.messages import Limits
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..conftest import MakeModel
from .engine_rig import Device

PROMPT = [3 + index * 7 % 90 for index in range(20)]
TOKENS = 2000
LIMITS = Limits(max_context=2048, max_streams=2, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
BLOCK = 4
"""Draft tokens of a step, the last of which is wrong."""
LOOK = 20
"""Every so many steps one is looked at closely."""
TOKEN_BYTES = 100
"""Of Python's own memory, that a token may cost: its id in a list or two, and the growth of those by leaps."""


class Allocations(TorchDispatchMode):
    """Notes the largest tensor that is made while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {each.untyped_storage().data_ptr() for each in _tensors((args, kwargs))}
        made = func(*args, **(kwargs or {}))
        for each in _tensors(made):
            if each.untyped_storage().data_ptr() not in given:
                self.largest = max(self.largest, each.untyped_storage().nbytes())
        return made


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def room_for(tokens: int) -> int:
    """Tokens of the smallest slot that holds so many."""
    room = 256
    while room < tokens:
        room *= 2
    return room


def held_by_the_verifier() -> int:
    """Bytes that its code has allocated since tracing began and not given back."""
    folder = Path(draftwire.cloud_verifier.__file__).parent
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"{folder}/*")])
    return sum(each.size for each in found.statistics("filename"))


class LongStream:
    """A stream that is looked at after every step."""

    def __init__(self, folder: str) -> None:
        self.target = TransformersTarget.load(folder, dtype="float32", threads=1)
        self._cache = self.target._cache
        self._keys_bytes = self._cache.token_bytes // len(self._cache.layers) // 2  # of one layer, a token
        self._engine = Engine(self.target, limits=LIMITS, prefix_tokens=0)
        self.device = Device(self._engine)
        self.device.open(1, prompt=PROMPT, max_tokens=TOKENS)
        self._steps = 0
        self._engine.step()

    def run_to(self, tokens: int, draft: Callable[[int], Sequence[int]]) -> None:
        """Until so many tokens are committed; ``draft`` has what is proposed after so many."""
        while len(self.device.answer()) < tokens:
            self._steps += 1
            ahead = draft(len(self.device.answer()))
            if ahead:
                self.device.draft(len(self.device.sequences[1]), ahead, path=self._steps)
            self._step()
            if 1 not in self.device.ended:
                held = self._cache.length(1)
                assert held == len(self.device.sequences[1]) - 1
                # A draft that was rolled back may have been the reason to move to a larger slot.
                assert self.target.kv_bytes == room_for(self._cache._streams[1].touched) * self._cache.token_bytes
                assert self._cache._streams[1].touched <= held + 1 + BLOCK

    def _step(self) -> None:
        length = len(self.device.sequences[1])
        moves = length > room_for(length) - 2 * BLOCK  # to a larger slot, it may be in this very step
        if self._steps % LOOK or moves:
            self._engine.step()
            return
        with Allocations() as allocations:
            self._engine.step()
        assert 0 < allocations.largest < length * self._keys_bytes / 2


def test_memory_is_what_the_tokens_take_and_nothing_is_copied_whole(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token by token; and in blocks, of each of which something is rolled back."""
    folder = make_model("llama", max_position_embeddings=4096, head_dim=64)  # keys are far larger than scores
    grown: list[int] = []
    grow = SlotPool.grow
    monkeypatch.setattr(SlotPool, "grow", lambda pool, slots: (grown.append(pool.room), grow(pool, slots)))

    plain = LongStream(folder)
    grown.clear()
    plain.run_to(TOKENS, lambda _: ())
    assert grown == [512, 1024, 2048]
    assert plain.target.kv_bytes == 0
    text = plain.device.answer()

    drafted = LongStream(folder)
    grown.clear()
    wrong = [token ^ 1 for token in text]

    def draft(at: int) -> list[int]:
        return [*text[at : at + BLOCK - 1], *wrong[at + BLOCK - 1 : at + BLOCK]] if at else []

    drafted.run_to(TOKENS // 4, draft)
    tracemalloc.start()
    try:
        before = held_by_the_verifier()
        drafted.run_to(TOKENS - 1, draft)
        more = held_by_the_verifier() - before
    finally:
        tracemalloc.stop()
    drafted.run_to(TOKENS, draft)
    assert drafted.device.end().accepted_tokens > TOKENS / 2
    assert grown == [512, 1024, 2048]
    assert drafted.target.kv_bytes == 0
    assert more < TOKENS * TOKEN_BYTES
