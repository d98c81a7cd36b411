"""Greedy and coupled: the text is a function of seed and target alone, whatever the draft, the network or others do."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.scheduler import RunAhead, Scheduler
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.messages import Commit, Draft, End, EndReason, Opened
from draftwire.protocol.sampling import SamplingParams

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import running_verifier
from .table_bundle import right_table, write_bundle
from .table_targets import PacedTarget, endless_table, reference_tokens

PROMPT = [1, 7, 3]
COUNT = 60
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "nearly greedy": {"temperature": 1e-9},
    "coupled": {"temperature": 0.8, "seed": 11},
    "coupled, filtered": {"temperature": 1.2, "seed": 2**64 - 1, "top_k": 6, "top_p": 0.9, "min_p": 0.02},
    "coupled, penalized": {
        "temperature": 0.9,
        "seed": 5,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": ((2, 1.5), (9, -100.0)),
    },
    "greedy, penalized": {"temperature": 0.0, "repetition_penalty": 1.4, "frequency_penalty": 0.8},
}


@pytest.fixture(params=SETTINGS)
def setting(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SETTINGS[request.param]


@pytest.fixture
def expected(setting: dict[str, Any]) -> tuple[int, ...]:
    return reference_tokens(endless_table(), PROMPT, COUNT, **setting)


@pytest.mark.parametrize("draft", [None, "right", "wrong", "one-hot"])
async def test_any_draft_or_none(
    draft: str | None, drafts: dict[str, Path], setting: dict[str, Any], expected: tuple[int, ...]
) -> None:
    folder = drafts[draft] if draft else None
    async with running_verifier(endless_table()) as verifier, AsyncEdgeClient(verifier.url, draft=folder) as client:
        await client.wait_for_draft()
        for look_ahead, policy in ((1, "cost"), (4, "latency"), (8, "cost"), (64, "latency")):
            result = await client.generate(
                PROMPT, max_tokens=COUNT, controller="fixed", look_ahead=look_ahead, policy=policy, **setting
            )
            assert result.token_ids == expected, (look_ahead, policy)
            assert result.stats.committed == COUNT
            assert (result.stats.drafted > 0) or not (draft and policy == "cost")


@pytest.mark.parametrize("run_ahead", RunAhead)
async def test_whatever_the_scheduler_does(
    run_ahead: RunAhead, right_draft: Path, setting: dict[str, Any], expected: tuple[int, ...]
) -> None:
    scheduler = Scheduler(run_ahead=run_ahead, max_block=3, prefill_chunk=2)
    async with (
        running_verifier(endless_table(), scheduler=scheduler) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft) as client,
    ):
        await client.wait_for_draft()
        assert (await client.generate(PROMPT, max_tokens=COUNT, **setting)).token_ids == expected


async def test_through_a_slow_network(drafts: dict[str, Path], setting: dict[str, Any]) -> None:
    count = 24
    expected = reference_tokens(endless_table(), PROMPT, count, **setting)
    async with running_verifier(endless_table()) as verifier:

        async def generate(draft: str, delay: float) -> tuple[int, ...]:
            async with (
                WanRelay("127.0.0.1", verifier.port, delay=delay) as relay,
                AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=drafts[draft]) as client,
            ):
                await client.wait_for_draft()
                return (await client.generate(PROMPT, max_tokens=count, **setting)).token_ids

        ways = [("right", 0.0), ("right", 0.01), ("right", 0.03), ("wrong", 0.01), ("one-hot", 0.02)]
        answers = await asyncio.gather(*(generate(draft, delay) for draft, delay in ways))
        assert answers == [expected] * len(ways)


async def test_beside_other_streams(drafts: dict[str, Path], setting: dict[str, Any]) -> None:
    """Seeded streams with different parameters, on one connection and on another, beside an unseeded neighbour."""
    others = [{"temperature": 0.0}, {"temperature": 0.7, "seed": 1}, {"temperature": 0.7, "seed": 2, "top_k": 4}]
    wanted = [setting, *others, setting]
    async with (
        running_verifier(endless_table()) as verifier,
        AsyncEdgeClient(verifier.url, draft=drafts["right"]) as one,
        AsyncEdgeClient(verifier.url, draft=drafts["wrong"]) as two,
    ):
        await asyncio.gather(one.wait_for_draft(), two.wait_for_draft())
        unseeded = asyncio.create_task(one.generate(PROMPT, max_tokens=COUNT, temperature=1.0))
        results = await asyncio.gather(
            *(client.generate(PROMPT, max_tokens=COUNT, **options) for options in wanted for client in (one, two))
        )
        assert len((await unseeded).token_ids) == COUNT
    for number, options in enumerate(wanted):
        expected = reference_tokens(endless_table(), PROMPT, COUNT, **options)
        assert [result.token_ids for result in results[2 * number : 2 * number + 2]] == [expected] * 2


@pytest.mark.parametrize("committed", [0, 1, 2, 17, COUNT - 1])
async def test_resuming_gives_the_same_continuation(
    committed: int, setting: dict[str, Any], expected: tuple[int, ...]
) -> None:
    """What a client that lost its verifier sends to any other: prompt, what was committed, and the same seed."""
    seed = setting.get("seed", 0)
    params = SamplingParams(**{name: value for name, value in setting.items() if name != "seed"})
    async with running_verifier(endless_table()) as verifier, await RawClient.connect(verifier) as client:
        stream = await client.open(
            [*PROMPT, *expected[:committed]],
            prompt_length=len(PROMPT),
            max_tokens=COUNT - committed,
            seed=seed,
            params=params,
        )
        tokens, end = await client.follow(stream)
    assert tuple(tokens) == expected[committed:]
    assert isinstance(end, End)
    assert (end.reason, end.prompt_tokens, end.committed_tokens) == (EndReason.LENGTH, 3, COUNT - committed)


async def test_a_draft_that_is_the_target_is_accepted_throughout(right_draft: Path) -> None:
    """500 tokens: no decay, no lost bonus token, at every position of a block."""
    target = endless_table()
    async with running_verifier(target) as verifier, AsyncEdgeClient(verifier.url, draft=right_draft) as client:
        await client.wait_for_draft()
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "seed": 3}):
            result = await client.generate(PROMPT, max_tokens=500, policy="cost", **options)
            assert result.token_ids == reference_tokens(target, PROMPT, 500, **options)
            assert result.stats.accepted == result.stats.drafted > 100
            assert result.stats.committed == 500 == result.stats.accepted + result.stats.target_passes


async def test_a_whole_block_with_its_bonus() -> None:
    """Eight right tokens in one frame: eight accepted and the ninth drawn in one step."""
    target = endless_table()
    expected = reference_tokens(target, PROMPT, 10)
    async with running_verifier(target) as verifier, await RawClient.connect(verifier) as client:
        # The cost policy waits for the draft, so what the step sees is no matter of timing.
        stream = await client.open(PROMPT, max_tokens=10, drafting=True, policy=1)
        await client.send(
            Draft(
                stream=stream,
                path=1,
                start=len(PROMPT),
                token_ids=expected[:8],
                confidences=(0,) * 8,
                sent_at=77,
            )
        )
        assert isinstance(await client.receive(), Opened)
        commits = [await client.receive()]
        while not isinstance(commits[-1], End):
            commits.append(await client.receive())
    first = commits[0]
    assert isinstance(first, Commit)
    assert (first.accepted, first.token, first.path, first.echo) == (8, expected[8], 1, 77)
    assert isinstance(commits[-1], End)
    assert (commits[-1].drafted_tokens, commits[-1].accepted_tokens, commits[-1].committed_tokens) == (8, 8, 10)


@pytest.mark.parametrize("count", range(1, 11))
async def test_exactly_as_many_tokens_as_asked_for(count: int, drafts: dict[str, Path]) -> None:
    async with running_verifier(endless_table()) as verifier:
        for name in ("right", "wrong"):
            async with AsyncEdgeClient(verifier.url, draft=drafts[name]) as client:
                await client.wait_for_draft()
                for options in ({}, {"temperature": 1.0, "mode": "rejection"}):
                    result = await client.generate(PROMPT, max_tokens=count, look_ahead=8, **options)
                    assert len(result.token_ids) == result.stats.committed == count
                    assert result.finish_reason == "length"
                    assert result.stats.accepted <= result.stats.drafted <= result.stats.sent_tokens


async def test_the_same_end(tmp_path: Path) -> None:
    """An end-of-sequence token ends the text at the same place with any draft, and is the last of its tokens."""
    target = PacedTarget(seconds=0.0, vocabulary_size=8, seed=1, scale=1.0, eos_bias=0.5)
    draft = write_bundle(tmp_path / "right", target, right_table(target))
    ended = 0
    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url, draft=draft) as drafting,
        AsyncEdgeClient(verifier.url) as plain,
    ):
        await drafting.wait_for_draft()
        for seed in range(20):
            expected = reference_tokens(target, PROMPT, 30, seed=seed, temperature=1.0)
            for client in (drafting, plain):
                result = await wait_for(client.generate(PROMPT, max_tokens=30, seed=seed, temperature=1.0))
                assert result.token_ids == expected
                assert (result.finish_reason == "stop") == (expected[-1] == 0)
                assert "<eos>" not in result.text
                ended += result.finish_reason == "stop"
    assert ended > 20
