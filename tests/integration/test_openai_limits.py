"""The door's limits as OpenAI's client meets them: its own exceptions, and the limit in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import openai
import pytest
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.keys import new_key

from ..grace import GRACE, wait_for
from .door_rig import GuardedVerifier, door_config, guarded_verifier
from .running_verifier import running_verifier
from .table_targets import HeldTarget, endless_table

KEY = new_key()
MODEL = "table-24-5"
LIMITS = {"max_prompt_tokens": 4, "max_output_tokens": 6}


def api_routes(*parts: Any) -> Any:
    return OpenAiApi(*parts).routes()


def client_of(port: int) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=KEY, max_retries=0, timeout=GRACE)


@asynccontextmanager
async def limited(**config: Any) -> AsyncIterator[tuple[GuardedVerifier, openai.AsyncOpenAI]]:
    """A verifier with one key, and OpenAI's client with it."""
    target = endless_table()
    target.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    guarded = guarded_verifier(door_config(keys={"alice": [KEY]}, **config), target=target, make_routes=api_routes)
    async with guarded as verifier, client_of(verifier.port) as client:
        yield verifier, client


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("whose", ["limits", "key"])
async def test_prompt_and_output_tokens(whose: str, stream: bool) -> None:
    """Of everybody, and of one key."""
    config: dict[str, Any] = {"limits": LIMITS} if whose == "limits" else {"key_rules": {"alice": LIMITS}}
    async with limited(**config) as (verifier, client):
        complete = partial(client.completions.create, model=MODEL, stream=stream)
        chat = partial(client.chat.completions.create, model=MODEL, stream=stream)
        for call, field in (
            (partial(complete, prompt=[1] * 5), "prompt"),
            (partial(chat, messages=said("abcde")), "messages"),
        ):
            with pytest.raises(
                openai.BadRequestError, match="the prompt has 5 tokens; at most 4 are allowed"
            ) as caught:
                await call(max_tokens=6)
            assert (caught.value.param, caught.value.code) == (field, "context_length_exceeded")
            assert caught.value.type == "invalid_request_error"
        for call, field in (
            (partial(complete, prompt=[1] * 4), "max_tokens"),
            (partial(chat, messages=said("abcd")), "max_tokens"),
            (partial(chat, messages=said("abcd")), "max_completion_tokens"),
        ):
            with pytest.raises(openai.BadRequestError, match=f"{field}: asks for 7 tokens; at most 6") as caught:
                await call(**{field: 7})
            assert (caught.value.param, caught.value.type) == (field, "invalid_request_error")
        assert verifier.refused == ["max_prompt_tokens"] * 2 + ["max_output_tokens"] * 3
        assert verifier.engine.counters.steps == 0
        answer = await client.completions.create(model=MODEL, prompt=[1] * 4, max_tokens=6)
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (4, 6)
        unsaid = await client.chat.completions.create(model=MODEL, messages=said("abcd"))  # as much as is allowed
        assert unsaid.usage is not None
        assert unsaid.usage.completion_tokens == 6


async def test_requests_a_minute_count_every_choice() -> None:
    async with limited(limits={"requests_per_minute": 3}) as (verifier, client):
        await client.completions.create(model=MODEL, prompt=[1], max_tokens=2, n=2)
        with pytest.raises(openai.RateLimitError, match="more than 3 requests a minute") as caught:
            await client.completions.create(model=MODEL, prompt=[1], max_tokens=2, n=2)
        assert (caught.value.code, caught.value.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert 1 <= int(caught.value.response.headers["Retry-After"]) <= 21
        assert verifier.refused == ["requests_per_minute"]
        assert verifier.engine.active_streams == 0


async def test_streams_in_all_are_named_when_they_are_used_up() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target, max_streams=2, routes=api_routes) as verifier,
        client_of(verifier.port) as client,
    ):
        create = client.completions.create
        held = asyncio.create_task(create(model=MODEL, prompt=[1], max_tokens=3000, n=2))
        await target.until(lambda: target.entered == 1)
        await target.step_until(lambda: target.opened == 2)
        late = asyncio.create_task(create(model=MODEL, prompt=[1]))
        while not late.done():  # whatever it takes for the call to arrive
            target.allow(1)
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError, match="all 2 streams are in use; try again later") as caught:
            await late
        assert caught.value.code == "rate_limit_exceeded"
        target.let_go()
        assert len((await wait_for(held)).choices) == 2
