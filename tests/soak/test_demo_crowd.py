"""Sixteen streams of the demo target in float32 say what each says alone; the engine's own tests have six."""

from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget

from ..cloud_verifier.engine.engine_rig import Crowd, float32_target, with_memory_for

pytestmark = pytest.mark.demo

STREAMS, TOKENS = 16, 100
CROWD = Crowd(
    # Their places come with memory for 256 tokens, and all of them outgrow it on the way.
    [[(stream * 977 + index * 31) % 40000 for index in range(160 + 2 * stream)] for stream in range(STREAMS)],
    tokens=TOKENS,
)


@pytest.fixture(scope="module")
def roomy(demo_target_folder: Path, soaking: bool) -> TransformersTarget:
    if not soaking:
        pytest.skip("takes minutes: make soak")
    return float32_target(demo_target_folder)


@pytest.fixture(scope="module")
def alone(roomy: TransformersTarget) -> dict[int, list[int]]:
    """What each stream says with the target to itself."""
    return CROWD.alone(roomy)


@pytest.mark.parametrize("kv_tokens", [None, 2000], ids=["room for all", "too little memory"])
def test_sixteen_streams_say_what_they_say_alone(
    demo_target_folder: Path, roomy: TransformersTarget, alone: dict[int, list[int]], kv_tokens: int | None
) -> None:
    """In too little memory some give their places up when they outgrow their slots, and are computed again."""
    target = with_memory_for(kv_tokens, roomy, demo_target_folder)
    device, watch = CROWD.together(target, drafts=alone)
    assert {stream: device.answer(stream) for stream in alone} == alone
    assert sum(device.end(stream).accepted_tokens for stream in alone) > STREAMS * TOKENS / 4
    if target.kv_budget is not None:
        assert watch.preempted_at
        assert watch.most_bytes <= target.kv_budget
