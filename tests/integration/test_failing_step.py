"""A step of the target raises while several clients are served: one stream is lost, and nothing else is noticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import End, EndReason, Error
from numpy.typing import NDArray

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import running_verifier
from .table_targets import HeldTarget, reference_tokens
from .test_metrics import operations_for, scrape

PROMPT, BAD_PROMPT = [1, 7, 3], [1, 7, 23]
COUNT = 30
FAILS_AT = 9
"""Tokens of its text that the poisoned stream has in the cache by then."""


class PoisonedTarget(HeldTarget):
    """Raises in every step that goes on from ``BAD_PROMPT`` beyond ``FAILS_AT``, before or after it has computed."""

    def __init__(self, *, computes: bool) -> None:
        super().__init__(vocabulary_size=24, seed=5, eos_bias=-1e4)
        self._computes = computes
        self._bad: set[int] = set()
        self.failed_beside: list[int] = []
        """How many streams took part in each step that failed."""

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self._bad |= {block.stream for block in blocks if block.start == 0 and list(block.tokens)[:3] == BAD_PROMPT}
        fails = any(block.stream in self._bad and block.start >= FAILS_AT for block in blocks)
        rows = super().step(blocks) if self._computes or not fails else []
        if fails:
            self.failed_beside.append(len(blocks))
            raise RuntimeError("CUDA error: an illegal memory access in /opt/kernels/attention.cu")
        return rows


@pytest.mark.parametrize("computes", [False, True], ids=["before it computes", "after"])
async def test_one_stream_of_three_on_two_connections_fails(computes: bool, caplog: pytest.LogCaptureFixture) -> None:
    target = PoisonedTarget(computes=computes)
    async with (
        running_verifier(target, operations=operations_for(target)) as verifier,
        await RawClient.connect(verifier) as one,
        await RawClient.connect(verifier) as other,
    ):
        good, bad = [await one.open(prompt, max_tokens=COUNT) for prompt in (PROMPT, BAD_PROMPT)]
        await target.until(lambda: target.entered == 1)
        alone = await other.open(PROMPT, max_tokens=COUNT)
        await target.step_until(lambda: target.opened == 3)
        with caplog.at_level(logging.ERROR):
            target.let_go()
            answers, others = await wait_for(asyncio.gather(one.follow_all(good, bad), other.follow_all(alone)))

        expected = list(reference_tokens(target, PROMPT, COUNT))
        for tokens, end in (answers[good], others[alone]):
            assert tokens == expected
            assert isinstance(end, End)
            assert end.reason is EndReason.LENGTH
        tokens, error = answers[bad]
        assert tokens == list(reference_tokens(target, BAD_PROMPT, FAILS_AT + 1 - len(BAD_PROMPT)))
        assert isinstance(error, Error)
        assert error.code is ErrorCode.INTERNAL
        assert error.message == "the target failed on this stream"
        assert target.failed_beside == [3, 1]
        assert "illegal memory access" in caplog.text  # for the operator, who has the log

        seen = await scrape(verifier)
        assert seen.value("target_failures_total") == 2  # of all together, and of the one by itself
        assert seen.value("request_failures_total", reason="internal") == seen.total("request_failures_total") == 1
        assert seen.value("request_success_total", finished_reason="length") == 2
        assert seen.total("generation_tokens_total") == 2 * COUNT + len(tokens)
        assert seen.value("num_requests_running") == 0

        for client in (one, other):  # both connections are as good as before
            tokens, end = await client.follow(await client.open(PROMPT, max_tokens=COUNT))
            assert isinstance(end, End)
            assert tokens == expected
    assert sorted(target.closed) == [1, 2, 3, 4, 5]
