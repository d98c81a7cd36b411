"""What one key may have open at once, counted over all its connections and calls, and nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai
import pytest
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import End, Error

from ..grace import GRACE, wait_for
from .door_rig import GuardedVerifier, bearer, door_config, guarded_verifier
from .raw_client import RawClient
from .table_targets import HeldTarget, reference_tokens

ALICE, BOB = new_key(), new_key()
PROMPT = [4, 2]
COUNT = 12
LONG = 3000


@asynccontextmanager
async def verifier_of_shares(**limits: int) -> AsyncIterator[GuardedVerifier]:
    """Held, so that streams are open for as long as a test wants; alice's share is her own, bob's is everybody's."""
    config = door_config(keys={"alice": [ALICE], "bob": [BOB]}, key_rules={"alice": {"max_streams": 2}}, limits=limits)
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with guarded_verifier(
        config, target=target, make_routes=lambda *parts: OpenAiApi(*parts).routes()
    ) as verifier:
        yield verifier


async def open_streams(verifier: GuardedVerifier, client: RawClient, count: int) -> list[int]:
    """Streams that have begun."""
    before = verifier.target.opened
    streams = [await client.open(PROMPT, max_tokens=LONG) for _ in range(count)]
    await verifier.target.step_until(lambda: verifier.target.opened == before + count)
    return streams


async def refusal(verifier: GuardedVerifier, client: RawClient) -> Error:
    """What a stream is told that gets no place; those that are open get a few tokens meanwhile."""
    answer = asyncio.create_task(client.follow(await client.open(PROMPT, max_tokens=COUNT)))
    await verifier.target.step_until(answer.done)
    tokens, error = await answer
    assert tokens == []
    assert isinstance(error, Error)
    return error


async def test_a_keys_streams_are_counted_over_its_connections_and_nobody_elses() -> None:
    async with (
        verifier_of_shares() as verifier,
        await RawClient.connect(verifier, headers=bearer(ALICE)) as phone,
        await RawClient.connect(verifier, headers=bearer(ALICE)) as laptop,
        await RawClient.connect(verifier, headers=bearer(BOB)) as bob,
    ):
        target = verifier.target
        (first,) = await open_streams(verifier, phone, 1)
        (second,) = await open_streams(verifier, laptop, 1)
        for client in (phone, laptop):
            error = await refusal(verifier, client)
            assert error.code is ErrorCode.BUSY
            assert error.message.startswith("all 2 streams that you may have are in use")
            assert error.retry_after_ms is not None
            assert error.retry_after_ms > 0
        others = await open_streams(verifier, bob, 3)
        assert verifier.engine.active_streams == 5
        target.let_go()
        answers = await asyncio.gather(phone.follow_all(first), laptop.follow_all(second), bob.follow_all(*others))
        assert all(isinstance(end, End) for each in answers for _, end in each.values())
        for client in (phone, laptop):  # the places are free again, for either
            tokens, end = await client.follow(await client.open(PROMPT, max_tokens=COUNT))
            assert isinstance(end, End)
            assert tuple(tokens) == reference_tokens(target, PROMPT, COUNT)


async def test_a_share_for_every_key_and_one_that_is_a_keys_own() -> None:
    async with (
        verifier_of_shares(max_streams_per_key=1) as verifier,
        await RawClient.connect(verifier, headers=bearer(ALICE)) as alice,
        await RawClient.connect(verifier, headers=bearer(BOB)) as bob,
    ):
        await open_streams(verifier, alice, 2)
        await open_streams(verifier, bob, 1)
        for client in (alice, bob):
            assert (await refusal(verifier, client)).code is ErrorCode.BUSY
        assert verifier.engine.active_streams == 3


async def test_openais_clients_have_the_same_share() -> None:
    async with (
        verifier_of_shares() as verifier,
        await RawClient.connect(verifier, headers=bearer(ALICE)) as device,
    ):
        target, url = verifier.target, f"http://127.0.0.1:{verifier.port}/v1"
        (stream,) = await open_streams(verifier, device, 1)
        async with openai.AsyncOpenAI(base_url=url, api_key=ALICE, max_retries=0, timeout=GRACE) as client:

            async def ask(choices: int) -> int:
                """How many choices come back; one stream each."""
                answer = await client.completions.create(
                    model=target.info.name, prompt=PROMPT, max_tokens=COUNT, n=choices
                )
                return len(answer.choices)

            call = asyncio.create_task(ask(2))
            while not call.done():  # whatever it takes for the call to arrive
                target.allow(1)
                await asyncio.sleep(0.01)
            with pytest.raises(openai.RateLimitError) as caught:
                await call
            assert caught.value.code == "rate_limit_exceeded"
            assert int(caught.value.response.headers["Retry-After"]) >= 1
            target.let_go()
            assert isinstance((await device.follow(stream))[1], End)
            assert await wait_for(ask(2)) == 2
