"""Exactness under an unsteady network: random delays, cuts, every controller and policy change the speed alone."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.gamma.choice import CONTROLLERS
from draftwire.edge_client.wan_relay import Conditions, Cut, WanRelay
from draftwire.protocol.errors import VerifierError

from .running_verifier import running_verifier
from .table_bundle import one_hot_table, right_table, write_bundle, wrong_table
from .table_targets import PacedTarget, reference_tokens

PROMPT = [1, 7, 3]
COUNT = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "seed": 11},
    "coupled, filtered": {"temperature": 1.2, "seed": 2**64 - 1, "top_k": 6, "top_p": 0.9},
}
PENALIZED: dict[str, Any] = {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.3, "presence_penalty": 0.4}


def make_target() -> PacedTarget:
    """Steps of 4 ms: some drafts are in time, some late, and many tokens are run ahead."""
    return PacedTarget(seconds=0.004, vocabulary_size=24, seed=5, scale=3.0, eos_bias=-1e4)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, target = tmp_path_factory.mktemp("bundles"), make_target()
    tables = {"right": right_table, "wrong": wrong_table, "one-hot": one_hot_table}
    return {name: write_bundle(folder / name, target, make(target)) for name, make in tables.items()}


@pytest.mark.parametrize("setting", [*SETTINGS, "penalized"])
async def test_the_same_text_at_every_distance_whoever_drafts(bundles: dict[str, Path], setting: str) -> None:
    options = SETTINGS.get(setting, PENALIZED)
    expected = reference_tokens(make_target(), PROMPT, COUNT, **options)
    ways = [
        (draft, controller, policy, delay, jitter)
        for number, controller in enumerate(CONTROLLERS)
        for draft, policy in (("right", "latency"), ("right", "cost"), ("wrong", "latency"))
        for delay, jitter in ([(0.0, 0.008), (0.01, 0.0), (0.002, 0.02)][number % 3],)
    ]
    async with running_verifier(make_target()) as verifier:

        async def generate(number: int) -> tuple[Any, ...]:
            draft, controller, policy, delay, jitter = ways[number]
            conditions = Conditions(delay=delay, jitter=jitter)
            async with (
                WanRelay("127.0.0.1", verifier.port, conditions=conditions, seed=number) as relay,
                AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=bundles[draft], threads=1) as client,
            ):
                await client.wait_for_draft()
                result = await client.generate(
                    PROMPT, max_tokens=COUNT, controller=controller, policy=policy, **options
                )
                return result.token_ids, result.stats

        answers = [await asyncio.gather(*map(generate, range(at, at + 6))) for at in range(0, len(ways), 6)]
    results = [answer for part in answers for answer in part]
    assert [tokens for tokens, _ in results] == [expected] * len(ways)
    # Both kinds of step took part, or nothing has been shown.
    assert sum(stats.accepted for _, stats in results) > COUNT
    assert sum(stats.run_ahead for _, stats in results) > COUNT


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("draft", ["right", "wrong", None])
async def test_cut_at_any_byte_and_taken_up_again_it_is_the_same_text(
    bundles: dict[str, Path], setting: str, draft: str | None
) -> None:
    """With the committed tokens as prompt and the same seed the rest is what it would have been."""
    options, chance = SETTINGS[setting], random.Random(f"{setting} {draft}")
    expected = reference_tokens(make_target(), PROMPT, COUNT, **options)
    # The first falls into the handshake, the others somewhere in the answer.
    cuts = [Cut(after_bytes=150 + 30 * number + chance.randrange(30)) for number in range(10)]
    committed: list[int] = []
    lost = 0
    async with (
        running_verifier(make_target()) as verifier,
        WanRelay(
            "127.0.0.1", verifier.port, conditions=Conditions(delay=0.002, jitter=0.004), cuts=cuts, seed=3
        ) as relay,
        AsyncEdgeClient(
            f"ws://127.0.0.1:{relay.port}", draft=bundles[draft] if draft else None, threads=1, reconnect_seconds=0
        ) as client,
    ):
        for _ in range(40):
            stream = client.stream([*PROMPT, *committed], max_tokens=COUNT - len(committed), **options)
            try:
                async with stream:
                    await stream.get_final_result()
            except VerifierError:
                lost += 1
            committed += stream.partial_result().token_ids
            assert tuple(committed) == expected[: len(committed)]
            if len(committed) == COUNT:
                break
    assert tuple(committed) == expected
    assert lost >= 3


async def test_a_distance_that_changes_in_mid_stream(bundles: dict[str, Path]) -> None:
    options = SETTINGS["coupled"]
    expected = reference_tokens(make_target(), PROMPT, 4 * COUNT, **options)
    async with (
        running_verifier(make_target()) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.0) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=bundles["right"], threads=1) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=4 * COUNT, **options) as stream:
            heard = 0
            async for _ in stream.text_stream:
                heard += 1
                relay.change(Conditions(delay=0.015 * (heard // 8 % 2), jitter=0.002))
            assert (await stream.get_final_result()).token_ids == expected
