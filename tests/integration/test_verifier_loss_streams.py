"""Failures of one stream, and of verifiers that go or have no room: which are tried again, how often, and on what."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from draftwire.edge_client import AsyncEdgeClient, AsyncStream, Reconnecting
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.codes import EndReason
from draftwire.protocol.errors import DraftwireError, ErrorCode, InternalVerifierError, VerifierError
from draftwire.protocol.messages import Commit, End, Error, Open, Opened
from draftwire.protocol.session import Session

from ..grace import wait_for
from .lost_verifiers import COUNT, PROMPT, expected_tokens, followed, paced_table
from .running_verifier import running_verifier
from .scripted_verifier import scripted_verifier, welcome
from .table_targets import HeldTarget, endless_table, reference_tokens

# --- what the verifier says of a stream -------------------------------------------------------------------------------


def failing(error: Error, *, times: int, opened: list[Open]) -> Any:
    """A verifier whose first streams each commit a token and end with ``error``; later ones have all they ask for."""

    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(welcome(endless_table())))
        while True:
            message = await ws.receive()
            if message.type is not web.WSMsgType.BINARY:
                return
            for request in session.receive(message.data):
                if isinstance(request, Open):
                    opened.append(request)
                    await answer(ws, session, request)

    async def answer(ws: web.WebSocketResponse, session: Session, request: Open) -> None:
        stream, fails = request.stream, len(opened) <= times
        tokens = reference_tokens(endless_table(), request.token_ids, 1 if fails else request.max_tokens)
        commits = [Commit(stream=stream, path=0, accepted=0, token=token) for token in tokens]
        end = End(stream=stream, reason=EndReason.LENGTH, committed_tokens=len(tokens), target_passes=len(tokens))
        last = Error(stream=stream, code=error.code, message=error.message) if fails else end
        for message in (Opened(stream=stream), *commits, last):
            await ws.send_bytes(session.send(message))

    return script


async def test_a_verifier_that_fails_on_a_stream_is_tried_once_more_on_the_same_connection() -> None:
    error = Error(stream=1, code=ErrorCode.INTERNAL, message="it broke")
    opened: list[Open] = []
    async with scripted_verifier(failing(error, times=1, opened=opened)) as url, AsyncEdgeClient(url) as client:
        result, events = await wait_for(followed(client.stream(PROMPT, max_tokens=COUNT)))
    assert result.token_ids == expected_tokens("greedy")
    assert [request.stream for request in opened] == [1, 2]
    assert [event.reason for event in events if isinstance(event, Reconnecting)] == ["it broke"]
    assert result.stats.reconnects == 0
    assert result.stats.target_passes == COUNT


async def test_and_no_more_than_once() -> None:
    error = Error(stream=1, code=ErrorCode.INTERNAL, message="it broke")
    opened: list[Open] = []
    async with scripted_verifier(failing(error, times=9, opened=opened)) as url, AsyncEdgeClient(url) as client:
        async with client.stream(PROMPT, max_tokens=COUNT) as stream:
            with pytest.raises(InternalVerifierError, match="it broke"):
                await wait_for(stream.get_final_result())
        assert stream.partial_result().token_ids == (expected_tokens("greedy") or ())[:2]
    assert len(opened) == 2


async def test_every_committed_token_gives_the_whole_time_again() -> None:
    """However often it is interrupted: each time it is a first failure, with a short wait."""
    error = Error(stream=1, code=ErrorCode.IDLE_TIMEOUT, message="too slow")
    opened: list[Open] = []
    async with (
        scripted_verifier(failing(error, times=12, opened=opened)) as url,
        AsyncEdgeClient(url, reconnect_seconds=1.5) as client,
    ):
        result, events = await wait_for(followed(client.stream(PROMPT, max_tokens=COUNT)))
    assert result.token_ids == expected_tokens("greedy")
    assert len(opened) == 13
    assert sum(isinstance(event, Reconnecting) for event in events) == 12


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PARAMETER, ErrorCode.NON_FINITE_LOGITS, ErrorCode.PROMPT_TOO_LONG])
async def test_what_would_only_be_said_again_is_not_asked_again(code: ErrorCode) -> None:
    opened: list[Open] = []
    script = failing(Error(stream=1, code=code, message="no"), times=9, opened=opened)
    async with scripted_verifier(script) as url, AsyncEdgeClient(url) as client:
        with pytest.raises(DraftwireError, match="no"):
            await wait_for(client.generate(PROMPT, max_tokens=COUNT))
    assert len(opened) == 1


async def test_a_stream_that_is_told_to_go_elsewhere_leaves_the_others_alone() -> None:
    """A verifier that drains takes no new streams, and lets those that run come to their end where they are."""
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as draining,
        running_verifier(endless_table()) as standby,
        AsyncEdgeClient([draining.url, standby.url]) as client,
        client.stream(PROMPT, max_tokens=3000) as early,
    ):
        await target.until(lambda: target.entered == 1)
        draining.engine.drain()
        async with client.stream(PROMPT, max_tokens=COUNT) as late:
            told = asyncio.ensure_future(anext(aiter(late)))
            await target.step_until(told.done)  # the engine takes what is asked between two steps
            assert isinstance(await told, Reconnecting)
            second = await wait_for(late.get_final_result())
        assert early.result is None
        target.let_go()
        first = await wait_for(early.get_final_result())
    assert first.token_ids[:COUNT] == second.token_ids == expected_tokens("greedy")
    assert len(first.token_ids) == 3000
    assert (first.stats.reconnects, second.stats.reconnects) == (0, 1)


# --- a verifier without room ------------------------------------------------------------------------------------------


async def test_a_busy_verifier_is_waited_for() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with running_verifier(target, max_streams=1) as verifier, AsyncEdgeClient(verifier.url) as one:
        first = asyncio.create_task(one.generate(PROMPT, max_tokens=COUNT))
        await target.until(lambda: target.entered == 1)
        async with AsyncEdgeClient(verifier.url) as two, two.stream(PROMPT, max_tokens=COUNT) as waiting:
            events = aiter(waiting)
            told = asyncio.ensure_future(anext(events))
            await target.step_until(told.done)
            assert isinstance(await told, Reconnecting)
            target.let_go()
            result = await wait_for(waiting.get_final_result())
        assert result.token_ids == (await first).token_ids == expected_tokens("greedy")
    assert result.stats.reconnects == 0


# --- leaving while it waits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", ["cancel", "close the stream", "close the client"])
@pytest.mark.parametrize("draft", [None, "right"])
async def test_whoever_leaves_during_a_search_leaves_at_once(
    leave: str, draft: str | None, drafts: dict[str, Path]
) -> None:
    before = len(asyncio.all_tasks())
    under_way, searching = asyncio.Event(), asyncio.Event()

    async def generate(stream: AsyncStream) -> None:
        async with stream:
            async for event in stream:
                under_way.set()
                if isinstance(event, Reconnecting):
                    searching.set()

    async with running_verifier(paced_table()) as verifier, AsyncExitStack() as network:
        relay = await network.enter_async_context(WanRelay("127.0.0.1", verifier.port, delay=0.0))
        url, folder = f"ws://127.0.0.1:{relay.port}", drafts[draft] if draft else None
        async with AsyncEdgeClient(url, draft=folder, reconnect_seconds=3600) as client:
            stream = client.stream(PROMPT, max_tokens=3000)
            generating = asyncio.create_task(generate(stream))
            await wait_for(under_way.wait())
            await network.aclose()  # breaks the connection, and takes no other
            await wait_for(searching.wait())
            if leave == "cancel":
                generating.cancel()
            elif leave == "close the stream":
                await wait_for(stream.close())
            else:
                await wait_for(client.close())
            (outcome,) = await wait_for(asyncio.gather(generating, return_exceptions=True))
            assert isinstance(outcome, asyncio.CancelledError if leave == "cancel" else VerifierError)
            partial = stream.partial_result()
            assert partial.token_ids == expected_tokens("greedy", len(partial.token_ids))
            assert 0 < len(partial.token_ids) < 3000
    while len(asyncio.all_tasks()) > before:
        await asyncio.sleep(0)
