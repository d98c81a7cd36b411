"""Whoever is gone costs the target the step it is in, and no other: a lost socket, in the batch or in line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.http import Route
from draftwire.cloud_verifier.targets.target import Target
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.messages import Limits

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import HeldTarget, reference_tokens

PROMPT = [1, 7, 3]
ENDLESS = 4000
FURTHER = 100
"""Steps that a stream nobody waits for would be free to take."""


def held_target() -> HeldTarget:
    return HeldTarget(vocabulary_size=64, seed=5, eos_bias=-1e4)


def through(verifier: RunningVerifier, relay: WanRelay) -> RunningVerifier:
    """The verifier as it is reached by the relay."""
    return replace(verifier, url=f"ws://127.0.0.1:{relay.port}")


def api_routes(engine: Engine, target: Target, limits: Limits) -> Sequence[Route]:
    return OpenAiApi(engine, target, limits).routes()


async def test_a_lost_socket_takes_its_streams_out_of_the_batch_within_a_step() -> None:
    target = held_target()
    async with (
        running_verifier(target) as verifier,
        WanRelay("127.0.0.1", verifier.port) as relay,
        await RawClient.connect(through(verifier, relay)) as client,
    ):
        for _ in range(3):
            await client.open(PROMPT, max_tokens=ENDLESS)
        await target.step_until(lambda: target.opened == 3)
        await target.until(lambda: target.entered > target.steps)
        steps = target.entered  # the last of them is under way
        relay.cut()
        await verifier.until_inside(0)
        assert not target.closed
        target.allow(FURTHER)
        await target.until(lambda: len(target.closed) == 3)
        assert target.steps == steps
        assert verifier.engine.active_streams == 0
        assert target.kv_bytes == verifier.engine.gauges().prefix_tokens  # no more than what it knows of texts


async def test_a_lost_socket_takes_its_streams_out_of_the_line() -> None:
    target = held_target()
    async with (
        running_verifier(target, max_streams=1, most_waiting=4) as verifier,
        WanRelay("127.0.0.1", verifier.port) as relay,
        await RawClient.connect(verifier) as first,
        await RawClient.connect(through(verifier, relay)) as departed,
        await RawClient.connect(verifier) as last,
    ):
        running = await first.open(PROMPT, max_tokens=40)
        await target.until(lambda: target.entered == 1)
        await departed.open(PROMPT, max_tokens=ENDLESS)
        await target.step_until(lambda: verifier.engine.gauges().waiting == 1)
        behind = await last.open(PROMPT, max_tokens=10)
        await wait_for(last.transport.ping())  # it is heard by then
        relay.cut()
        await verifier.until_inside(2)
        assert verifier.engine.gauges().waiting == 1
        steps = target.entered
        target.allow(1)
        await target.until(lambda: target.entered > steps)
        assert verifier.engine.gauges().waiting == 1  # whoever came behind
        target.let_go()
        assert tuple((await first.follow(running))[0]) == reference_tokens(target, PROMPT, 40)
        assert tuple((await last.follow(behind))[0]) == reference_tokens(target, PROMPT, 10)
        assert target.opened == 2
        assert target.steps == 40 + 10  # those who left had none


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_ordinary_call_that_is_cut_leaves_within_a_step(stream: bool) -> None:
    target = held_target()
    body: dict[str, Any] = {"prompt": PROMPT, "n": 3, "max_tokens": ENDLESS, "stream": stream, "ignore_eos": True}
    async with running_verifier(target, routes=api_routes) as verifier:
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
        payload = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
        writer.write(head.encode() + payload)
        await target.step_until(lambda: target.steps >= 3 and target.opened == 3)
        if stream:
            assert b"200 OK" in await wait_for(reader.readuntil(b"\r\n"))
            await wait_for(reader.readuntil(b"data: "))
        await target.until(lambda: target.entered > target.steps)
        steps = target.entered
        writer.transport.abort()
        await verifier.until_inside(0)
        assert not target.closed
        target.allow(FURTHER)
        await target.until(lambda: len(target.closed) == 3)
        assert target.steps == steps
        assert verifier.engine.active_streams == 0
