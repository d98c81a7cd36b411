"""The demo target in float32: what a stream says does not depend on who else is there, nor on drafts, nor on memory."""

from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.messages import Limits
from draftwire.protocol.sampling import SamplingParams

from .engine_rig import Device

STREAMS, TOKENS = 6, 16
LIMITS = Limits(max_context=1024, max_streams=STREAMS, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
KINDS = [SamplingParams(), SamplingParams(temperature=0.8)]


def finish(engine: Engine, drafts: dict[int, list[int]], device: Device) -> None:
    """Step to the end; what is drafted has every fifth token wrong, and starts anew after it."""
    path = dict.fromkeys(drafts, 0)
    engine.step()
    while engine.active_streams:
        for stream, text in drafts.items():
            at = len(device.answer(stream))
            if stream in device.ended or not at or at >= TOKENS - 1:
                continue
            path[stream] += 1
            ahead = [token if (at + index) % 5 else token ^ 1 for index, token in enumerate(text[at : at + 4])]
            device.draft(len(device.sequences[stream]), ahead, stream=stream, path=path[stream])
        engine.step()


@pytest.mark.demo
@pytest.mark.parametrize("kv_tokens", [None, 400], ids=["room for all", "too little memory"])
def test_every_stream_says_what_it_says_alone(demo_target_folder: Path, kv_tokens: int | None) -> None:
    target = TransformersTarget.load(str(demo_target_folder), dtype="float32")
    prompts = [[(stream * 977 + index * 31) % 40000 for index in range(20 + 15 * stream)] for stream in range(STREAMS)]

    def open_on(device: Device, stream: int) -> None:
        params = KINDS[stream % 2]
        device.open(stream, prompt=prompts[stream - 1], params=params, max_tokens=TOKENS, seed=stream)

    alone: dict[int, list[int]] = {}
    for stream in range(1, STREAMS + 1):
        engine = Engine(target, limits=LIMITS, prefix_tokens=0)
        device = Device(engine)
        open_on(device, stream)
        finish(engine, {}, device)
        alone[stream] = device.answer(stream)
    if kv_tokens is not None:
        small = TransformersTarget.load(
            str(demo_target_folder), dtype="float32", kv_memory=kv_tokens * target._cache.token_bytes
        )
        target = small
    engine = Engine(target, limits=LIMITS, most_waiting=STREAMS, wait_seconds=600.0)
    device = Device(engine)
    for stream in range(1, STREAMS + 1):
        open_on(device, stream)
    finish(engine, alone, device)
    assert {stream: device.answer(stream) for stream in alone} == alone
    assert sum(device.end(stream).accepted_tokens for stream in alone) > STREAMS * 3
    budget = target.kv_budget
    assert budget is None or target.kv_bytes <= budget
