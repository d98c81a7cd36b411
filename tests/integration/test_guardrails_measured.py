"""What guardrails measure over real sockets: slower tokens, failures, shares of the streams, rules of keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import CommitReport, Observer
from draftwire.cloud_verifier.engine.scheduler import Plan, Scheduler
from draftwire.cloud_verifier.engine.stream import VerifierStream, Work
from draftwire.cloud_verifier.guardrails.guardrails import Guardrails
from draftwire.cloud_verifier.guardrails.rule import OFF, SHADOW, Rule, draw_of
from draftwire.cloud_verifier.guardrails.thresholds import Thresholds
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.config import Config, RouteRules
from draftwire.cloud_verifier.service.http import Route
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block, Target
from draftwire.edge_client import AsyncEdgeClient
from draftwire.protocol.errors import InternalVerifierError
from draftwire.protocol.messages import Commit, Draft, End, Limits, Opened, Policy
from numpy.typing import NDArray

from ..grace import GRACE, wait_for
from .door_rig import GuardedVerifier, bearer, door_config, guarded_verifier
from .raw_client import RawClient
from .table_targets import reference_tokens

PROMPT = [4, 2]
COUNT = 13
EAGER: dict[str, Any] = {"controller": "fixed", "look_ahead": 3}


class BlockPricedTarget(TableTarget):
    """A step takes 5 ms, but with a block of several tokens 40 ms for each: drafts are right, and a loss.

    These are seconds of its own, in which nothing else takes any: see :class:`OnTargetTime`.
    """

    def __init__(self) -> None:
        super().__init__(vocabulary_size=24, seed=5, eos_bias=-1e4)
        self.now = 0.0
        self.dear = True

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        most = max(block.rows for block in blocks)
        self.now += 0.04 * most if self.dear and most > 1 else 0.005
        return super().step(blocks)


class OnTargetTime(Observer):
    """Tells guardrails everything as if the target's steps alone took time, so that a busy machine changes nothing."""

    def __init__(self, watcher: Observer, target: BlockPricedTarget) -> None:
        self._watcher = watcher
        self._target = target
        self.opened = watcher.opened  # type: ignore[method-assign]
        self.ended = watcher.ended  # type: ignore[method-assign]

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        self._watcher.committed(stream, replace(report, at=self._target.now))


class FailsOnDrafts(TableTarget):
    """Fails on whatever has a proposal in it."""

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        if any(block.rows > 1 for block in blocks):
            raise RuntimeError("no kernel for this shape")
        return super().step(blocks)


class DraftsAlone(Scheduler):
    """Makes no step for a drafting stream without a draft, and verifies all of each: it never learns what steps cost.

    One that learns would leave dear drafts out. So what a stream takes is no matter of how soon its drafts come.
    """

    def plan(self, streams: Iterable[VerifierStream], now: float) -> Plan:
        """See :meth:`Scheduler.plan`."""
        return super().plan([stream for stream in streams if _is_ready(stream)], now)

    def stepped(self, work: Sequence[Work], seconds: float) -> None:
        """See :meth:`Scheduler.stepped`."""


def _is_ready(stream: VerifierStream) -> bool:
    return not stream.drafting or stream.prefilling or stream.remaining == 1 or bool(stream.proposed())


class Watch:
    """The clock of guardrails, and what they switched."""

    def __init__(self) -> None:
        self.now = 0.0
        self.switches: list[tuple[str, ...]] = []

    def guardrails(self, **thresholds: Any) -> Guardrails:
        """For the route without a name."""
        return Guardrails(
            thresholds=Thresholds(**thresholds),
            switched=lambda *told: self.switches.append(told[1:]),
            clock=lambda: self.now,
        )


def api_routes(engine: Engine, target: Target, limits: Limits) -> Sequence[Route]:
    return OpenAiApi(engine, target, limits).routes()


async def drafting(verifier: GuardedVerifier, draft: Path, *, key: str | None = None, **options: Any) -> Any:
    """The figures of an exact answer to a client that drafts."""
    async with AsyncEdgeClient(verifier.url, draft=draft, api_key=key, reconnect_seconds=0) as client:
        await client.wait_for_draft()
        result = await wait_for(client.generate(PROMPT, max_tokens=COUNT, **EAGER, **options))
    assert result.token_ids == reference_tokens(verifier.target, PROMPT, COUNT)
    return result.stats


async def plain(verifier: GuardedVerifier) -> None:
    """An answer to a client without a draft."""
    async with AsyncEdgeClient(verifier.url) as client:
        await wait_for(client.generate(PROMPT, max_tokens=COUNT))


async def through_openai(verifier: GuardedVerifier) -> None:
    """An answer to OpenAI's client."""
    url = f"http://127.0.0.1:{verifier.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=GRACE) as client:
        name = verifier.target.info.name
        await client.completions.create(model=name, prompt=PROMPT, max_tokens=COUNT, temperature=0)


# --- thresholds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", [plain, through_openai])
async def test_drafts_that_cost_more_than_they_bring_are_found_out(baseline: Any, right_draft: Path) -> None:
    """Measured against streams without drafts, whoever asks for those; and it comes back, slowly."""
    watch, target = Watch(), BlockPricedTarget()
    guardrails = watch.guardrails(
        max_tpot_ratio=2.0, min_samples=2, baseline_share=0.0, probe_share=1.0, cooldown_seconds=60.0, good_windows=2
    )
    guardrails.observer = OnTargetTime(guardrails.observer, target)
    async with guarded_verifier(
        target=target, guardrails=guardrails, scheduler=DraftsAlone(), make_routes=api_routes
    ) as verifier:
        for _ in range(3):
            assert (await drafting(verifier, right_draft)).accepted > 0
        assert watch.switches == []  # there is nothing to compare with
        for _ in range(2):
            await baseline(verifier)
        assert watch.switches == []
        await drafting(verifier, right_draft)
        assert watch.switches == [("tripped", "tpot")]
        for _ in range(2):
            assert (await drafting(verifier, right_draft)).drafted == 0

        watch.now = 60.0  # the cool-down is over, and nothing has changed
        for _ in range(2):
            assert (await drafting(verifier, right_draft)).accepted > 0
        assert watch.switches[1:] == [("probing", "cooldown"), ("tripped", "tpot")]
        watch.now = 119.0
        assert (await drafting(verifier, right_draft)).drafted == 0

        target.dear = False
        watch.now = 120.0
        for _ in range(3):
            await drafting(verifier, right_draft)
        assert watch.switches[3:] == [("probing", "cooldown")]  # one good window is not enough
        await drafting(verifier, right_draft)
        assert watch.switches[4:] == [("healthy", "recovered")]
        assert (await drafting(verifier, right_draft)).accepted > 0


async def test_a_target_that_fails_on_drafts_is_used_without_them(right_draft: Path) -> None:
    watch, target = Watch(), FailsOnDrafts(vocabulary_size=24, seed=5, eos_bias=-1e4)
    guardrails = watch.guardrails(max_error_rate=0.4, min_samples=4)
    async with guarded_verifier(target=target, guardrails=guardrails) as verifier:
        for _ in range(4):
            assert watch.switches == []
            with pytest.raises(InternalVerifierError, match="failed on this stream"):
                await drafting(verifier, right_draft, policy="cost")
        assert watch.switches == [("tripped", "errors")]
        assert (await drafting(verifier, right_draft, policy="cost")).drafted == 0


# --- whose drafts are used ----------------------------------------------------------------------------------------


@asynccontextmanager
async def canary(share: float) -> AsyncIterator[GuardedVerifier]:
    """A verifier of which a share of the streams drafts."""
    async with guarded_verifier(Config(routes={"": RouteRules(speculation=Rule(share=share))})) as verifier:
        yield verifier


async def draws(verifier: GuardedVerifier, request_id: str, seeds: Sequence[int]) -> list[bool]:
    """For each of a connection's streams whether its draft was verified. All have the same, exact text."""
    expected = reference_tokens(verifier.target, PROMPT, 6)
    drawn = []
    async with await RawClient.connect(verifier, headers={"X-Request-Id": request_id}) as client:
        for seed in seeds:
            stream = await client.open(PROMPT, max_tokens=6, seed=seed, drafting=True, policy=Policy.COST)
            guess = Draft(stream=stream, path=1, start=2, token_ids=expected[:5], confidences=(255,) * 5, sent_at=0)
            await client.send(guess)
            tokens: list[int] = []
            while not isinstance(message := await client.receive(), End):
                if isinstance(message, Commit):
                    tokens += expected[len(tokens) : len(tokens) + message.accepted]
                    tokens += [message.token] if message.token is not None else []
                else:
                    assert isinstance(message, Opened), message
            assert tuple(tokens) == expected
            drawn.append(message.drafted_tokens > 0)
    return drawn


async def test_a_canary_is_a_share_of_the_streams_and_on_every_replica_the_same() -> None:
    seeds = range(100, 140)
    async with canary(0.5) as one, canary(0.5) as other, canary(0.7) as wider:
        first = await draws(one, "call-7", seeds)
        assert 8 <= sum(first) <= 32
        assert first == [draw_of("call-7", index, seed) < 0.5 for index, seed in enumerate(seeds, 1)]
        assert await draws(one, "call-7", seeds) == first
        assert await draws(other, "call-7", seeds) == first
        assert await draws(one, "call-8", seeds) != first
        assert set(await draws(one, "call-7", [5] * 12)) == {True, False}  # streams of one seed are drawn apart
        grown = await draws(wider, "call-7", seeds)
        assert sum(grown) > sum(first)
        assert all(now or not before for before, now in zip(first, grown, strict=True))


async def test_a_keys_own_rule_is_its_own(right_draft: Path) -> None:
    keys = {name: new_key() for name in ("alice", "bob", "carol")}
    config = door_config(
        keys={name: [key] for name, key in keys.items()},
        key_rules={"alice": {"speculation": SHADOW}, "carol": {"speculation": OFF}},
    )
    async with guarded_verifier(config, scheduler=DraftsAlone()) as verifier:
        shadow, on, off = [await drafting(verifier, right_draft, key=key) for key in keys.values()]
        assert shadow.accepted > 0
        assert shadow.target_passes == off.target_passes == COUNT  # as plain as that of somebody who does not draft
        assert off.drafted == 0
        assert on.accepted > 0
        assert on.target_passes < COUNT
        async with await RawClient.connect(verifier, headers=bearer(keys["alice"])) as client:
            tokens, end = await client.follow(await client.open(PROMPT, max_tokens=COUNT))
            assert isinstance(end, End)
            assert tuple(tokens) == reference_tokens(verifier.target, PROMPT, COUNT)
