"""The demo target in float32: what a stream says does not depend on who else is there, nor on drafts, nor on memory.

`tests/soak` has the same for more and longer streams.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget

from .engine_rig import Crowd, float32_target, with_memory_for

pytestmark = pytest.mark.demo

STREAMS, TOKENS = 6, 16
CROWD = Crowd(
    [[(stream * 977 + index * 31) % 40000 for index in range(20 + 15 * stream)] for stream in range(STREAMS)],
    tokens=TOKENS,
)


@pytest.fixture(scope="module")
def roomy(demo_target_folder: Path) -> TransformersTarget:
    return float32_target(demo_target_folder)


@pytest.fixture(scope="module")
def alone(roomy: TransformersTarget) -> dict[int, list[int]]:
    """What each stream says with the target to itself."""
    return CROWD.alone(roomy)


@pytest.mark.parametrize("kv_tokens", [None, 600], ids=["room for all", "too little memory"])
def test_every_stream_says_what_it_says_alone(
    demo_target_folder: Path, roomy: TransformersTarget, alone: dict[int, list[int]], kv_tokens: int | None
) -> None:
    """In too little memory two streams have a place at a time, and the others wait for theirs."""
    target = with_memory_for(kv_tokens, roomy, demo_target_folder)
    device, watch = CROWD.together(target, drafts=alone)
    assert {stream: device.answer(stream) for stream in alone} == alone
    assert sum(device.end(stream).accepted_tokens for stream in alone) > STREAMS * 3
    assert target.kv_budget is None or watch.most_bytes <= target.kv_budget
