"""How the device behaves beside an app and a network: idle when it waits, awake to silence, unmoved by jitter."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from draftwire.edge_client import AsyncEdgeClient, transport
from draftwire.edge_client.wan_relay import Conditions, WanRelay
from draftwire.protocol.errors import ConnectionLostError

from .running_verifier import running_verifier
from .table_targets import HeldTarget, PacedTarget, endless_table

PROMPT = [1, 7, 3]


async def test_waiting_for_the_cloud_takes_next_to_no_cpu(right_draft: Path) -> None:
    """The path is as long as it may get and the target does not answer: nothing spins, at either end."""
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft, threads=1) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=200, look_ahead=8) as stream:
            await target.until(lambda: target.entered > 0)
            await asyncio.sleep(0.3)  # drafting gets to its limit
            drafted = stream.partial_result().stats.draft_steps
            cpu, wall = time.process_time(), time.monotonic()
            await asyncio.sleep(1.0)
            used = (time.process_time() - cpu) / (time.monotonic() - wall)
            assert stream.partial_result().stats.draft_steps == drafted > 0
            target.let_go()
            await stream.get_final_result()
    assert used < 0.1


async def test_a_verifier_that_silently_stops_is_noticed(right_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_PING_INTERVAL", 0.5)
    target = PacedTarget(seconds=0.005, vocabulary_size=24, seed=5, eos_bias=-1e4)  # not over before the stall
    async with (
        running_verifier(target) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.01) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=right_draft, threads=1, reconnect_seconds=0) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=2000) as stream:
            await anext(stream.text_stream)
            relay.stall()
            with pytest.raises(ConnectionLostError):
                await asyncio.wait_for(stream.get_final_result(), 20)
        assert stream.partial_result().token_ids
        relay.resume()
        assert len((await client.generate(PROMPT, max_tokens=20)).token_ids) == 20  # on a new connection


async def test_jitter_of_20_to_400_ms_ends_no_stream_and_the_estimate_recovers(right_draft: Path) -> None:
    target = PacedTarget(seconds=0.01, vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        WanRelay("127.0.0.1", verifier.port, conditions=Conditions(jitter=(0.02, 0.4)), seed=4) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=right_draft, threads=1) as client,
    ):
        await client.wait_for_draft()
        answers = await asyncio.gather(*(client.generate(PROMPT, max_tokens=20, seed=seed) for seed in range(4)))
        assert [len(answer.token_ids) for answer in answers] == [20] * 4
        relay.change(Conditions(delay=0.01))
        result = await client.generate(PROMPT, max_tokens=200, controller="fixed", look_ahead=2)
    measured = result.stats.rtt_seconds
    assert len(measured) > 10
    assert sorted(measured[5:])[len(measured[5:]) // 2] < 0.1


async def test_a_device_learns_from_its_own_streams_alone(right_draft: Path) -> None:
    """Figures go from stream to stream of one client, and to no other client."""
    async with running_verifier(endless_table()) as verifier:
        async with (
            AsyncEdgeClient(verifier.url, draft=right_draft, threads=1) as one,
            AsyncEdgeClient(verifier.url, draft=right_draft, threads=1) as other,
        ):
            await asyncio.gather(one.wait_for_draft(), other.wait_for_draft())
            await one.generate(PROMPT, max_tokens=60, controller="adaptive", policy="cost")
            assert one.figures.draft.known
            assert not other.figures.draft.known
            kept = json.loads(json.dumps(one.figures.dump()))
        async with AsyncEdgeClient(verifier.url, draft=right_draft, threads=1, figures=kept) as again:
            assert again.figures.draft.median == one.figures.draft.median
            assert len((await again.generate(PROMPT, max_tokens=20)).token_ids) == 20


async def test_the_hook_stops_drafting_in_mid_stream(right_draft: Path) -> None:
    paused = False
    async with (
        running_verifier(endless_table()) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.002) as relay,
        AsyncEdgeClient(
            f"ws://127.0.0.1:{relay.port}", draft=right_draft, threads=1, pause_drafting=lambda: paused
        ) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=1500, controller="fixed") as stream:
            seen = 0
            async for _ in stream.text_stream:
                seen += 1
                if seen == 20:
                    paused = True
                if seen == 30:
                    steps = stream.partial_result().stats.draft_steps
            result = await stream.get_final_result()
    assert 0 < result.stats.draft_steps <= steps + 1
    assert len(result.token_ids) == 1500
