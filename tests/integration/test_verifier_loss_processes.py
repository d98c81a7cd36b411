"""Verifiers that are processes of their own, ended by signals in mid-answer, with another one standing by."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from draftwire.edge_client import AsyncEdgeClient, AsyncStream, EdgeClient, Reconnecting, TextDelta
from draftwire.protocol.errors import AuthenticationError, ConnectionLostError, VerifierRefusedError

from ..grace import wait_for
from .lost_verifiers import followed
from .running_verifier import running_verifier
from .scripted_verifier import serving
from .table_targets import endless_table, reference_tokens
from .verifier_process import serving_table

PROMPT = [1, 7, 3]
OPTIONS: dict[str, Any] = {"temperature": 0.9, "seed": 6}
COUNT = 150


async def followed_and(act: Callable[[], object], stream: AsyncStream, after: int) -> tuple[Any, list[Any]]:
    """Follow a stream, and do something once it has so many tokens."""

    async def watch() -> None:
        while len(stream.partial_result().token_ids) < after:
            await asyncio.sleep(0.001)
        act()

    watching = asyncio.create_task(watch())
    outcome = await wait_for(followed(stream))
    await watching
    return outcome


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("draft", [None, "right"])
async def test_a_verifier_that_ends_in_mid_answer(
    number: signal.Signals, draft: str | None, drafts: dict[str, Path]
) -> None:
    """kill -9 breaks the connection; SIGTERM leaves a second, which is too short here; the text is the same."""
    count = 2 * COUNT if number is signal.SIGTERM else COUNT
    expected = reference_tokens(endless_table(), PROMPT, count, **OPTIONS)
    with serving_table() as (first, url), serving_table() as (_, standby):
        async with AsyncEdgeClient([url, standby], draft=drafts[draft] if draft else None) as client:
            await client.wait_for_draft()
            stream = client.stream(PROMPT, max_tokens=count, **OPTIONS)
            result, events = await followed_and(lambda: first.send_signal(number), stream, 20)
            assert result.token_ids == expected
            told = [event.reason for event in events if isinstance(event, Reconnecting)]
            assert len(told) == result.stats.reconnects
            if draft is None or number is not signal.SIGTERM:  # in a second a draft may well bring it to its end
                assert len(told) == 1
            # The next answer comes from the one that is there.
            again = await wait_for(client.generate(PROMPT, max_tokens=20, **OPTIONS))
            assert again.token_ids == expected[:20]
            if number is signal.SIGKILL and draft:
                assert result.stats.accepted > 0


async def test_a_verifier_that_comes_back_at_the_same_address(right_draft: Path) -> None:
    """With one address: the answer waits, and goes on with a verifier that has never heard of it."""
    expected = reference_tokens(endless_table(), PROMPT, COUNT, **OPTIONS)
    with serving_table() as (first, url):
        async with AsyncEdgeClient(url, draft=right_draft) as client:
            await client.wait_for_draft()
            async with client.stream(PROMPT, max_tokens=COUNT, **OPTIONS) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta) and len(stream.partial_result().token_ids) >= 20:
                        break
                first.kill()
                first.wait()
                async for event in stream:
                    if isinstance(event, Reconnecting):
                        break
                with serving_table(url.rpartition(":")[2]):
                    result = await wait_for(stream.get_final_result())
    assert result.token_ids == expected
    assert result.stats.reconnects == 1


async def test_many_streams_come_back_together() -> None:
    """One search and one connection for all of them."""
    with serving_table() as (first, url):
        async with running_verifier(endless_table()) as standby, AsyncEdgeClient([url, standby.url]) as client:
            streams = [client.stream(PROMPT, max_tokens=COUNT, temperature=0.9, seed=seed) for seed in range(8)]
            killed = asyncio.Event()

            async def follow(stream: AsyncStream) -> Any:
                async with stream:
                    async for event in stream:
                        if isinstance(event, TextDelta):
                            break
                    first.kill()
                    killed.set()
                    return await stream.get_final_result()

            results = await wait_for(asyncio.gather(*map(follow, streams)))
            assert client._lifeline.last is not None
            assert client._lifeline.last.url == standby.url
    for seed, result in enumerate(results):
        assert result.token_ids == reference_tokens(endless_table(), PROMPT, COUNT, temperature=0.9, seed=seed)
        assert result.stats.reconnects == 1


def test_the_sync_client_goes_on_as_well() -> None:
    expected = reference_tokens(endless_table(), PROMPT, COUNT)
    with serving_table() as (first, url), serving_table() as (_, standby), EdgeClient([url, standby]) as client:
        with client.stream(PROMPT, max_tokens=COUNT) as stream:
            pieces = []
            for piece in stream.text_stream:
                pieces.append(piece)
                if len(pieces) == 10:
                    first.kill()
            result = stream.get_final_result()
        assert "".join(pieces) == result.text
        assert result.token_ids == expected
        assert result.stats.reconnects == 1
        assert client.generate(PROMPT, max_tokens=5).token_ids == expected[:5]


def test_the_sync_client_closes_during_a_search() -> None:
    with serving_table() as (first, url):
        client = EdgeClient(url, reconnect_seconds=3600)
        searching = threading.Event()
        told: list[BaseException] = []

        def generate() -> None:
            try:
                with client.stream(PROMPT, max_tokens=3000) as stream:
                    for event in stream:
                        if isinstance(event, TextDelta):
                            first.kill()
                        if isinstance(event, Reconnecting):
                            searching.set()
            except ConnectionLostError as error:
                told.append(error)

        thread = threading.Thread(target=generate)
        thread.start()
        assert searching.wait(60)
        client.close()
        thread.join(60)
        assert not thread.is_alive()
        assert "closed" in str(told[0])


# --- verifiers that say no --------------------------------------------------------------------------------------------


async def test_a_bad_key_is_one_attempt_whatever_the_budget() -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.Response(status=401)

    app = web.Application()
    app.router.add_get("/v1/verify", refuse)
    async with serving(app) as one, serving(app) as other:
        async with AsyncEdgeClient([one, other], api_key="wrong", reconnect_seconds=60) as client:
            with pytest.raises(AuthenticationError) as caught:
                await wait_for(client.generate(PROMPT, max_tokens=4))
        assert "wrong" not in str(caught.value)
    assert asked == ["Bearer wrong"]


async def test_a_key_that_is_withdrawn_in_mid_answer_is_one_attempt_too() -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=401)

    app = web.Application()
    app.router.add_get("/v1/verify", refuse)
    with serving_table() as (first, url):
        async with serving(app) as standby, AsyncEdgeClient([url, standby], api_key="k") as client:
            async with client.stream(PROMPT, max_tokens=COUNT) as stream:
                async for event in stream:
                    if isinstance(event, TextDelta):
                        break
                first.kill()
                with pytest.raises(AuthenticationError):
                    await wait_for(stream.get_final_result())
            partial = stream.partial_result()
            assert partial.finish_reason == "error"
            assert partial.token_ids == reference_tokens(endless_table(), PROMPT, len(partial.token_ids))
    assert asked == ["/v1/verify"]


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_verifier_that_is_not_ready_is_tried_a_bounded_number_of_times(status: int) -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/v1/verify", refuse)
    async with serving(app) as url, AsyncEdgeClient(url, reconnect_seconds=0.5) as client:
        with pytest.raises(VerifierRefusedError, match=str(status)):
            await wait_for(client.generate(PROMPT, max_tokens=4))
        tries = len(asked)
        assert tries >= 2
    assert len(asked) == tries


async def test_a_verifier_that_gets_ready_meanwhile() -> None:
    asked = []
    async with running_verifier(endless_table()) as verifier:

        async def refuse(request: web.Request) -> web.Response:
            asked.append(request.path)
            if len(asked) < 3:
                return web.Response(status=503, headers={"Retry-After": "0"})
            raise web.HTTPTemporaryRedirect(verifier.url + "/v1/verify")

        app = web.Application()
        app.router.add_get("/v1/verify", refuse)
        async with serving(app) as url, AsyncEdgeClient(url, reconnect_seconds=60) as client:
            welcome = await wait_for(client.connect())
    assert welcome.target == "table-24-5"
    assert len(asked) == 3


async def test_a_time_to_come_back_that_is_too_late_is_told_at_once() -> None:
    asked = []

    async def refuse(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(status=503, headers={"Retry-After": "3600"})

    app = web.Application()
    app.router.add_get("/v1/verify", refuse)
    async with serving(app) as url, AsyncEdgeClient(url, reconnect_seconds=60) as client:
        with pytest.raises(VerifierRefusedError, match="503") as caught:
            await wait_for(client.generate(PROMPT, max_tokens=4))
    assert caught.value.retry_after == 3600
    assert len(asked) == 1
