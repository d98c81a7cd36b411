"""A target, an owner or the engine itself fails: only what it concerns is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import (
    EndReason,
    Message,
    Prefix,
)
from draftwire.protocol.sampling import SamplingParams
from numpy.typing import NDArray

from .engine_rig import COUPLED, GREEDY, PROMPT, Device, V, alone, finish, make, step


class Failing(TableTarget):
    """Fails on blocks that hold token 39: raises, or answers NaN."""

    raises = False

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        bad = [39 in block.tokens for block in blocks]
        rows = super().step(blocks)
        if self.raises and any(bad):
            raise RuntimeError("out of memory")
        return [row * np.nan if wrong else row for row, wrong in zip(rows, bad, strict=True)]


@pytest.mark.parametrize(("raises", "code"), [(False, ErrorCode.NON_FINITE_LOGITS), (True, ErrorCode.INTERNAL)])
def test_a_failure_of_one_stream_is_its_own(raises: bool, code: ErrorCode) -> None:
    target = Failing(vocabulary_size=V, seed=3)
    target.raises = raises
    engine, device = make(target)
    expected = alone(COUPLED, 20)
    assert 39 not in expected
    device.open(1, prompt=(1, 39))
    device.open(2, params=COUPLED)
    device.open(3, params=COUPLED)
    device.draft(4, expected[:5], stream=3)
    finish(engine)
    assert device.error(1).code is code
    assert device.answer(2) == device.answer(3) == expected
    assert device.end(3).accepted_tokens == 5
    assert "memory" not in device.error(1).message


def test_nan_in_a_row_that_is_not_reached_harms_nobody() -> None:
    engine, device = make()
    target = engine._target
    original, expected = target.step, alone(GREEDY, 20)

    def poisoned(blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        rows = original(blocks)
        for block, row in zip(blocks, rows, strict=True):
            if block.rows > 1:
                row[1:] = np.nan
        return rows

    target.step = poisoned  # type: ignore[method-assign]
    device.open()
    device.draft(4, [(expected[0] + 1) % V, 1, 2])
    finish(engine)
    assert device.answer() == expected


@pytest.mark.parametrize("where", [0, 2, 3])
@pytest.mark.parametrize("params", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_what_was_accepted_before_a_row_that_is_not_finite_is_committed(params: SamplingParams, where: int) -> None:
    engine, device = make()
    target = engine._target
    original, expected, bad = target.step, alone(params, 20), len(PROMPT) + 1 + where

    def poisoned(blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        rows = original(blocks)
        for block, row in zip(blocks, rows, strict=True):
            first = block.start + len(block.tokens) - block.rows + 1  # the position that row 0 scores
            row[max(0, bad - first) :] = np.nan
        return rows

    target.step = poisoned  # type: ignore[method-assign]
    device.open(params=params)
    step(engine)
    device.draft(5, expected[1:4])
    finish(engine)
    assert device.answer() == expected[: 1 + where]
    assert all(commit.token is not None for commit in device.commits())
    assert device.error().code is ErrorCode.NON_FINITE_LOGITS


def test_a_target_that_has_less_memory_than_it_promised_is_busy_for_the_stream_that_does_not_fit() -> None:
    engine, device = make(TableTarget(vocabulary_size=V, seed=3, kv_budget=20))
    device.open(1, max_tokens=20)
    finish(engine)
    error = device.error(1)
    assert (error.code, error.retry_after_ms) == (ErrorCode.BUSY, 1000)
    assert "no memory" in error.message
    assert device.answer() == alone()[: len(device.answer())]


class Faulty(TableTarget):
    """Fails half-way through ``open`` with what is no error of ours, while ``failing``."""

    failing = False

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        super().open(stream, capacity, room=room)
        if self.failing:
            raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize("prefix", [None, Prefix(stream=1, length=4)], ids=["whole", "after a prefix"])
def test_a_fault_in_opening_a_stream_is_its_own(prefix: Prefix | None) -> None:
    target = Faulty(vocabulary_size=V, seed=3)
    engine, device = make(target)
    other = Device(engine)
    device.open(1, max_tokens=1, retain=True)
    other.open(1)
    step(engine)
    target.failing = True
    device.open(2, prompt=(7,), prefix=prefix)
    step(engine)  # which sees that no slot is left half-open
    assert device.error(2).code is ErrorCode.INTERNAL
    assert "CUDA" not in device.error(2).message
    target.failing = False
    device.open(3)
    finish(engine)
    assert other.answer() == device.answer(3) == alone()


def test_a_slot_that_cannot_be_freed_fails_nobody() -> None:
    class Sticky(TableTarget):
        def close(self, stream: int) -> None:
            raise RuntimeError(f"slot {stream}: no such device")

    engine, device = make(Sticky(vocabulary_size=V, seed=3))
    device.open(1, max_tokens=1000)
    device.open(2)
    engine.step()
    engine.cancel(device, 1)
    while engine.active_streams:
        engine.step()
    assert device.end(1).reason is EndReason.CANCELLED
    assert device.answer(2) == alone()


def test_a_fault_of_the_engine_tells_every_stream_and_it_goes_on() -> None:
    engine, device = make()
    other = Device(engine)
    device.open(1)
    other.open(1, max_tokens=1000)
    engine._step_safely()
    plan = engine._scheduler.plan

    def failing(*_: Any) -> Any:
        engine._scheduler.plan = plan  # type: ignore[method-assign]
        raise RuntimeError("a bug")

    engine._scheduler.plan = failing  # type: ignore[method-assign]
    engine._step_safely()
    assert device.error(1).code is other.error(1).code is ErrorCode.INTERNAL
    device.open(3)
    finish(engine)
    assert device.answer(3) == alone()


def test_what_was_committed_before_a_fault_is_told() -> None:
    engine, device = make()
    other = Device(engine)
    device.open(1, max_tokens=1)
    other.open(1)
    original = engine._stepper._count

    def failing(verdict: Verdict, accepted: int, share: Any, ended: float) -> None:
        if share.stream.owner is other:
            raise RuntimeError("a bug")
        original(verdict, accepted, share, ended)

    engine._stepper._count = failing  # type: ignore[method-assign]
    engine._step_safely()
    assert device.answer() == alone(GREEDY, 1)
    assert device.end().reason is EndReason.LENGTH
    assert other.error().code is ErrorCode.INTERNAL


def test_an_owner_that_cannot_be_told_does_not_keep_others_from_hearing() -> None:
    class Deaf(Device):
        def deliver(self, messages: Sequence[Message]) -> None:
            raise RuntimeError(f"Event loop is closed; {len(messages)} messages lost")

    engine, device = make()
    Deaf(engine).open(1)
    device.open(1)
    finish(engine)
    assert device.answer() == alone()
