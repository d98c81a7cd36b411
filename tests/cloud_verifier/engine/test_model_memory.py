"""A real model that runs out of KV memory: streams give their places up and come back, and no text is the worse."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget

from ..conftest import MakeModel
from .engine_rig import Crowd

STREAMS, TOKENS = 5, 200
CROWD = Crowd(
    [
        [3 + (stream * 7 + index * 31 + index // 5) % 90 for index in range(140 + 10 * stream)]
        for stream in range(1, STREAMS + 1)
    ],
    tokens=TOKENS,
)


@pytest.fixture(scope="module")
def alone(make_model: MakeModel) -> dict[int, list[int]]:
    """What each stream says with the target to itself."""
    return CROWD.alone(TransformersTarget.load(make_model("llama"), dtype="float32", threads=1))


@pytest.mark.parametrize(
    ("room", "prefix_tokens", "drafting"),
    [(700, 0, False), (700, 1 << 16, True), (1000, 1 << 16, False)],
    ids=["plain", "with drafts and known prefixes", "with known prefixes"],
)
def test_preempted_streams_say_what_they_say_alone(
    make_model: MakeModel, alone: dict[int, list[int]], room: int, prefix_tokens: int, drafting: bool
) -> None:
    """In memory for so many tokens; all of them together take 1750."""
    folder = make_model("llama")
    token_bytes = TransformersTarget.load(folder, dtype="float32", threads=1)._cache.token_bytes
    target = TransformersTarget.load(folder, dtype="float32", threads=1, kv_memory=room * token_bytes)
    device, watch = CROWD.together(target, drafts=alone if drafting else None, prefix_tokens=prefix_tokens)
    assert {stream: device.answer(stream) for stream in alone} == alone
    assert any(committed > 50 for committed in watch.preempted_at)  # and not only before it had begun
    assert 0 < watch.most_bytes <= room * token_bytes
    assert (sum(device.end(stream).accepted_tokens for stream in alone) > 100) is drafting
    assert target.kv_bytes == device.engine.gauges().prefix_tokens * token_bytes
