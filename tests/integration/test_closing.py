"""A client that closes, whatever it is doing: nobody waits for ever, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client import AsyncEdgeClient, Degraded, EdgeClient, RoundCompleted
from draftwire.protocol.errors import DraftwireError

from ..grace import GRACE, wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import PacedTarget, endless_table

PROMPT = [1, 7, 3]


async def _nothing_left(verifier: RunningVerifier) -> None:
    async with asyncio.timeout(GRACE):
        while verifier.engine.active_streams:
            await asyncio.sleep(0)


async def test_a_stream_closed_before_it_begins_has_no_events() -> None:
    async with running_verifier(endless_table()) as verifier, AsyncEdgeClient(verifier.url) as client:
        async with client.stream(PROMPT) as stream:
            pass
        assert [event async for event in stream] == []


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20, 100])
async def test_closing_at_any_point_ends_the_stream_and_frees_everything(turns: int, right_draft: Path) -> None:
    async with running_verifier(endless_table()) as verifier:
        before = len(asyncio.all_tasks())
        client = AsyncEdgeClient(verifier.url, draft=right_draft)
        generation = asyncio.create_task(client.generate(PROMPT, max_tokens=3000))
        for _ in range(turns):
            await asyncio.sleep(0)
        await wait_for(client.close())
        (outcome,) = await wait_for(asyncio.gather(generation, return_exceptions=True))
        # A table answers so fast that the last of these may have been in time.
        assert isinstance(outcome, DraftwireError) or len(outcome.token_ids) == 3000
        assert client._lifeline.last is None or not client._lifeline.last.usable
        await _nothing_left(verifier)
        async with asyncio.timeout(GRACE):
            while len(asyncio.all_tasks()) > before + 2:  # the server's side of the connection goes a little later
                await asyncio.sleep(0)
        with pytest.raises(DraftwireError, match="closed"):
            await client.generate(PROMPT)


def _use(client: EdgeClient, under_way: threading.Event) -> str:
    try:
        with client.stream(PROMPT, max_tokens=3900) as stream:
            for event in stream:
                if isinstance(event, RoundCompleted):
                    under_way.set()
    except DraftwireError as error:
        return str(error)
    return "finished"


async def test_closing_from_another_thread_ends_every_waiting_call(right_draft: Path) -> None:
    async with running_verifier(endless_table()) as verifier:
        for _ in range(15):
            client = await asyncio.to_thread(EdgeClient, verifier.url, draft=right_draft)
            under_way = threading.Event()
            calls = [asyncio.create_task(asyncio.to_thread(_use, client, under_way)) for _ in range(3)]
            assert await asyncio.to_thread(under_way.wait, GRACE)
            closes = [asyncio.to_thread(client.close) for _ in range(3)]
            await wait_for(asyncio.gather(*closes))
            for told in await wait_for(asyncio.gather(*calls)):
                assert told == "finished" or "closed" in told
        await _nothing_left(verifier)


async def test_two_consumers_of_one_stream_both_come_to_an_end() -> None:
    async with (
        running_verifier(endless_table()) as verifier,
        AsyncEdgeClient(verifier.url) as client,
        client.stream(PROMPT, max_tokens=60) as stream,
    ):

        async def text() -> str:
            return "".join([piece async for piece in stream.text_stream])

        first, second, result = await wait_for(asyncio.gather(text(), text(), stream.get_final_result()))
        assert len(first) + len(second) == len(result.text)
        assert [event async for event in stream] == []  # taken already
        assert (await wait_for(stream.get_final_result())) == result


async def test_a_result_stays_when_the_client_has_closed() -> None:
    def use(url: str) -> tuple[Any, Any]:
        with EdgeClient(url) as client, client.stream(PROMPT, max_tokens=5) as stream:
            result = stream.get_final_result()
        return result, stream.get_final_result()

    async with running_verifier(endless_table()) as verifier:
        first, again = await wait_for(asyncio.to_thread(use, verifier.url))
    assert first == again


@pytest.mark.parametrize("hook", [lambda: 1 / 0, lambda: {}["battery"]])
async def test_a_pause_hook_that_raises_ends_drafting_and_not_the_answer(
    hook: Callable[[], bool], right_draft: Path
) -> None:
    # Steps take a while, so that the device gets to ask before the answer is over.
    target = PacedTarget(seconds=0.005, vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft, pause_drafting=hook) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=100) as stream:
            reasons = [event.reason async for event in stream if isinstance(event, Degraded)]
    assert len(reasons) == 1
    assert reasons[0].startswith("pause_drafting raised ")


def test_an_executor_of_clients_comes_and_goes() -> None:
    """Clients that never connect close as well."""
    with ThreadPoolExecutor(4) as pool:
        for client in pool.map(EdgeClient, ["ws://127.0.0.1:9"] * 8):
            client.close()
            client.close()
