"""Streams and connections that come and go: cancelled, cut off, side by side, continued, and survived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS
from draftwire.edge_client import AsyncEdgeClient, AsyncStream, EdgeClient, RoundCompleted
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.errors import BusyError, ConnectionLostError
from draftwire.protocol.messages import Open

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import HeldTarget, RecordingTarget, endless_table, reference_tokens
from .verifier_process import port_of, serving_table

PROMPT = [1, 7, 3]


def held_target() -> HeldTarget:
    return HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)


async def after_tokens(stream: AsyncStream, count: int, act: Callable[[], object]) -> None:
    """Follow a stream to its end, and do something once it has committed so many tokens."""
    acted = False
    async for _ in stream:
        if not acted and len(stream.partial_result().token_ids) >= count:
            acted = True
            act()


# --- leaving ------------------------------------------------------------------------------------------------------


async def test_leaving_the_block_ends_the_stream_within_a_step() -> None:
    target = held_target()
    async with running_verifier(target) as verifier, AsyncEdgeClient(verifier.url) as client:
        async with client.stream(PROMPT, max_tokens=1000) as stream:
            target.allow(3)
            rounds = 0
            async for event in stream:
                rounds += isinstance(event, RoundCompleted)
                if rounds == 3:
                    break
            await target.until(lambda: target.entered == 4)
        # The pong comes after the verifier has read the CANCEL before it.
        await client.ping()
        target.allow(100)
        await target.until(lambda: len(target.closed) == 1)
        assert target.steps == 4  # the one that was under way
        assert verifier.engine.active_streams == 0
        assert stream.partial_result().token_ids == reference_tokens(target, PROMPT, 3)


async def test_a_cancelled_task_ends_its_stream() -> None:
    target = held_target()
    async with running_verifier(target) as verifier, AsyncEdgeClient(verifier.url) as client:
        task = asyncio.create_task(client.generate(PROMPT, max_tokens=1000))
        await target.until(lambda: target.entered == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.ping()
        target.allow(100)
        await target.until(lambda: len(target.closed) == 1)
        assert target.steps == 1


async def test_a_cut_connection_ends_its_streams() -> None:
    target = held_target()
    async with (
        running_verifier(target) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.0) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", reconnect_seconds=0) as client,
    ):
        async with client.stream(PROMPT, max_tokens=2000) as stream:
            target.allow(5)
            with pytest.raises(ConnectionLostError, match="generate again"):
                await after_tokens(stream, 5, relay.cut)
            assert stream.partial_result().token_ids == reference_tokens(target, PROMPT, 5)
        await target.step_until(lambda: bool(target.closed))
        assert target.steps < 1000
        assert verifier.engine.active_streams == 0
        target.let_go()
        again = await wait_for(client.generate(PROMPT, max_tokens=20))
        assert again.token_ids == reference_tokens(target, PROMPT, 20)


async def test_many_clients_that_connect_and_vanish() -> None:
    target = held_target()
    target.let_go()
    async with running_verifier(target, max_streams=8) as verifier:
        for cycle in range(40):
            async with WanRelay("127.0.0.1", verifier.port, delay=0.0) as relay:
                client = AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", reconnect_seconds=0)
                async with client.stream(PROMPT, max_tokens=4000, seed=cycle) as stream:
                    await wait_for(anext(aiter(stream)))
                    relay.cut()
                await client.close()
        await target.until(lambda: len(target.closed) == target.opened)
        assert target.opened == 40
        assert verifier.engine.active_streams == 0


# --- side by side -------------------------------------------------------------------------------------------------


async def test_streams_of_all_kinds_on_one_connection(right_draft: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": 1},
        {"temperature": 1.0, "seed": 2, "top_k": 5, "look_ahead": 2},
        {"temperature": 1.0, "seed": 3, "repetition_penalty": 1.2, "policy": "cost"},
        {"temperature": 0.0, "look_ahead": 0},
        {"temperature": 1.0, "seed": 4, "mode": "rejection"},
    ]
    async with (
        running_verifier(endless_table()) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft) as client,
    ):
        await client.wait_for_draft()
        counts = range(20, 80, 10)
        results = await wait_for(
            asyncio.gather(
                *(client.generate(PROMPT, max_tokens=n, **kind) for n, kind in zip(counts, kinds, strict=True))
            )
        )
        assert verifier.engine.active_streams == 0
    for count, kind, result in zip(counts, kinds, results, strict=True):
        assert len(result.token_ids) == count
        if "mode" in kind:
            continue
        params = {name: value for name, value in kind.items() if name not in ("look_ahead", "policy")}
        assert result.token_ids == reference_tokens(endless_table(), PROMPT, count, **params)


async def test_a_full_verifier_says_busy_at_once_and_serves_again_later() -> None:
    target = held_target()
    async with (
        running_verifier(target, max_streams=2) as verifier,
        AsyncEdgeClient(verifier.url) as one,
        AsyncEdgeClient(verifier.url, wait_when_busy=False) as two,
    ):
        first = [asyncio.create_task(one.generate(PROMPT, max_tokens=400)) for _ in range(2)]
        await target.until(lambda: target.entered == 1)
        await target.step_until(lambda: target.opened == 2)  # whoever comes during a step is heard after it
        refused = asyncio.create_task(two.generate(PROMPT, max_tokens=4))
        await target.step_until(refused.done)
        with pytest.raises(BusyError, match="try again later") as caught:
            await refused
        assert caught.value.retry_after == 1.0
        target.let_go()
        expected = reference_tokens(target, PROMPT, 400)
        assert [(await wait_for(task)).token_ids for task in first] == [expected, expected]
        assert (await wait_for(two.generate(PROMPT, max_tokens=4))).token_ids == expected[:4]


# --- turns of a chat ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def chat_verifier(
    monkeypatch: pytest.MonkeyPatch, **options: Any
) -> AsyncIterator[tuple[RunningVerifier, RecordingTarget, list[Open]]]:
    """A verifier with a chat template, and the OPENs that reach its engine."""
    target = RecordingTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    target.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    requests: list[Open] = []
    async with running_verifier(target, **options) as verifier:
        admit = verifier.engine.open

        def record(owner: Any, request: Open) -> None:
            requests.append(request)
            admit(owner, request)

        monkeypatch.setattr(verifier.engine, "open", record)
        yield verifier, target, requests


@pytest.mark.parametrize("draft", [None, "right"])
async def test_a_later_turn_sends_only_what_is_new(
    draft: str | None, drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafts[draft] if draft else None
    async with (
        chat_verifier(monkeypatch) as (verifier, target, requests),
        AsyncEdgeClient(verifier.url, draft=folder, retain_context=True) as client,
    ):
        await client.wait_for_draft()
        prompt = [1 + token % 20 for token in range(300)]
        for turn in range(4):
            before = target.fed
            result = await wait_for(client.generate(prompt, max_tokens=20, temperature=0.8, seed=turn))
            expected = reference_tokens(target, prompt, 20, temperature=0.8, seed=turn)
            assert result.token_ids == expected
            assert result.prompt_tokens == len(prompt)
            if turn:
                assert requests[-1].prefix is not None
                assert requests[-1].prefix.length >= len(prompt) - 3
                assert len(requests[-1].token_ids) == 3 == requests[-1].length - requests[-1].prefix.length
            if turn and draft is None:  # what fills no block, the last committed token, the new ones, the answer
                assert target.fed - before <= BLOCK_TOKENS - 1 + 1 + 3 + 19
            prompt = [*prompt, *result.token_ids, 5, 6, 7]
    assert [request.prefix is None for request in requests] == [True, False, False, False]


async def test_chat_messages_continue_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        chat_verifier(monkeypatch) as (verifier, _, requests),
        AsyncEdgeClient(verifier.url, retain_context=True) as client,
        AsyncEdgeClient(verifier.url) as forgetful,
    ):
        messages = [{"role": "user", "content": "abcabcabc"}]
        for _ in range(3):
            answer = await client.generate(messages, max_tokens=12)
            assert answer.text == (await forgetful.generate(messages, max_tokens=12)).text
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "de"}]
        mine = [request for request in requests if request.retain]
        assert [len(request.token_ids) for request in mine] == [9, 2, 2]


async def test_a_prompt_that_leaves_the_context_keeps_what_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Edited history: only as much of the retained stream is used as the prompt really starts with."""
    async with (
        chat_verifier(monkeypatch) as (verifier, target, requests),
        AsyncEdgeClient(verifier.url, retain_context=True) as client,
    ):
        first = await client.generate(PROMPT * 10, max_tokens=10)
        for prompt in ([*PROMPT * 10, *first.token_ids[:4], 2, 2, 2], PROMPT * 5, [9, 9, 9], PROMPT):
            result = await client.generate(prompt, max_tokens=10)
            assert result.token_ids == reference_tokens(target, prompt, 10)
        lengths = [request.prefix.length if request.prefix else 0 for request in requests]
        assert lengths[1] >= 34
        assert lengths[2:] == [14, 0, 0]


async def test_a_dropped_prefix_falls_back_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        chat_verifier(monkeypatch, max_streams=1) as (verifier, target, requests),
        AsyncEdgeClient(verifier.url, retain_context=True) as client,
    ):
        first = await client.generate(PROMPT, max_tokens=10)
        verifier.engine._lifecycle._retained._kept.clear()  # as when many others came meanwhile
        prompt = [*PROMPT, *first.token_ids, 4]
        async with client.stream(prompt, max_tokens=10) as stream:
            events = [event async for event in stream]
            result = await stream.get_final_result()
        assert result.token_ids == reference_tokens(target, prompt, 10)
        assert {type(event).__name__ for event in events} == {"TextDelta", "RoundCompleted", "Finished"}
        assert [request.prefix is None for request in requests] == [True, False, True]


async def test_retained_streams_go_with_their_connection() -> None:
    target = held_target()
    target.let_go()
    async with running_verifier(target) as verifier:
        retained = verifier.engine._lifecycle._retained
        async with AsyncEdgeClient(verifier.url, retain_context=True) as client:
            await client.generate(PROMPT, max_tokens=5)
            assert len(retained) == 1
        async with AsyncEdgeClient(verifier.url) as other:
            while len(retained):  # whatever the engine is asked comes after what the end of the connection asked
                await wait_for(other.generate(PROMPT, max_tokens=1))


# --- a verifier that dies -----------------------------------------------------------------------------------------


async def test_a_verifier_killed_in_mid_stream_loses_nothing(right_draft: Path) -> None:
    options: dict[str, Any] = {"temperature": 0.9, "seed": 6}
    whole = reference_tokens(endless_table(), PROMPT, 400, **options)
    with serving_table() as (process, url):
        async with AsyncEdgeClient(url, draft=right_draft, reconnect_seconds=0) as client:
            await client.wait_for_draft()
            async with client.stream(PROMPT, max_tokens=3000, **options) as stream:
                with pytest.raises(ConnectionLostError) as caught:
                    await after_tokens(stream, 20, process.kill)
                partial = stream.partial_result()
            assert "\n" not in str(caught.value)
            assert len(partial.token_ids) >= 20
            assert partial.token_ids[:400] == whole[: len(partial.token_ids)]
            assert partial.seed == 6
            assert partial.stats.committed == len(partial.token_ids)
            process.wait()
            with serving_table(str(port_of(url))):  # a new one at the same address
                result = await wait_for(client.generate(PROMPT, max_tokens=40, **options))
                assert result.token_ids == whole[:40]
                assert result.stats.sent_tokens > 0


def test_the_sync_client_survives_as_well() -> None:
    with serving_table() as (process, url), EdgeClient(url, reconnect_seconds=0) as client:
        with client.stream(PROMPT, max_tokens=3000) as stream:
            pieces = [piece for _, piece in zip(range(10), stream.text_stream, strict=False)]
            process.kill()
            with pytest.raises(ConnectionLostError):
                pieces.extend(stream.text_stream)
            assert stream.partial_result().text.startswith("".join(pieces))
            with pytest.raises(ConnectionLostError):
                stream.get_final_result()
        process.wait()
        with serving_table(str(port_of(url))):
            expected = reference_tokens(endless_table(), PROMPT, 10)
            assert client.generate(PROMPT, max_tokens=10).token_ids == expected


async def test_a_raw_client_that_stays_silent_holds_nothing_up() -> None:
    """Connected, shaken hands, and never heard of again: others are served, and it costs no slot."""
    async with running_verifier(endless_table(), max_streams=1) as verifier:
        async with await RawClient.connect(verifier), AsyncEdgeClient(verifier.url) as client:
            result = await client.generate(PROMPT, max_tokens=10)
        assert result.token_ids == reference_tokens(endless_table(), PROMPT, 10)
