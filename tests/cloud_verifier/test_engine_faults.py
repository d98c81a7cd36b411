"""A target, an owner or the engine itself fails: only what it concerns is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.table_target import TableTarget
from draftwire.cloud_verifier.target import Block
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import (
    Commit,
    EndReason,
    Message,
)
from numpy.typing import NDArray

from .engine_rig import COUPLED, GREEDY, Device, V, alone, finish, make


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


def test_a_fault_of_the_engine_tells_every_stream_and_it_goes_on() -> None:
    class Broken(TableTarget):
        def open(self, stream: int, capacity: int) -> None:
            if capacity == 4 + 13:
                raise RuntimeError("no such device")
            super().open(stream, capacity)

    engine, device = make(Broken(vocabulary_size=V, seed=3))
    other = Device(engine)
    device.open(1)
    other.open(1, max_tokens=1000)
    engine._step_safely()
    device.open(2, max_tokens=13)
    engine._step_safely()
    assert {type(message).__name__ for message in device.messages} == {"Opened", "Commit", "Error"}
    assert device.error(1).code is other.error(1).code is ErrorCode.INTERNAL
    device.open(3)
    finish(engine)
    assert device.answer(3) == alone()


def test_what_was_committed_before_a_fault_is_told() -> None:
    engine, device = make()
    other = Device(engine)
    device.open(1, max_tokens=1)
    other.open(1)
    original = engine._count

    def failing(accepted: int, share: Any, frame: Commit) -> None:
        if share.stream.owner is other:
            raise RuntimeError("a bug")
        original(accepted, share, frame)

    engine._count = failing  # type: ignore[method-assign]
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
