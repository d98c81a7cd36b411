"""A target in a long step, and a draft that takes long to load, hold nothing else up."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from draftwire.edge_client import AsyncEdgeClient, AsyncStream, EdgeClient, RoundCompleted, TextDelta, device
from draftwire.protocol.errors import DrafterError, VerifierError

from ..grace import GRACE, wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import HeldTarget, RecordingTarget, endless_table, reference_tokens

PROMPT = [1, 7, 3]


def held_target() -> HeldTarget:
    return HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)


# --- a step that does not end -------------------------------------------------------------------------------------


async def test_everything_else_answers_while_the_target_is_in_a_step() -> None:
    target = held_target()
    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url) as client,
        client.stream(PROMPT, max_tokens=10) as stream,
    ):
        await target.until(lambda: target.entered == 1)
        http = verifier.url.replace("ws", "http", 1)
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GRACE)) as session:
            for path in ("/healthz", "/readyz", "/v1/models", "/v1/tokenizer"):
                async with session.get(http + path) as response:
                    assert response.status == 200
        await wait_for(client.ping())
        async with await RawClient.connect(verifier) as other:
            await wait_for(other.transport.ping())
        assert target.steps == 0  # none of it had to wait for the step
        target.let_go()
        result = await wait_for(stream.get_final_result())
    assert result.token_ids == reference_tokens(target, PROMPT, 10)


async def test_what_the_http_side_says() -> None:
    target = endless_table()
    async with running_verifier(target, max_context=777) as verifier, aiohttp.ClientSession() as session:
        http = verifier.url.replace("ws", "http", 1)
        async with session.get(http + "/v1/models") as response:
            (model,) = (await response.json())["data"]
        assert (model["id"], model["max_context"], model["vocabulary_size"]) == ("table-24-5", 777, 24)
        assert model["fingerprint"] == target.info.fingerprint.hex()
        async with session.get(http + "/v1/tokenizer") as response:
            tag = response.headers["ETag"]
            assert (await response.json())["tokenizer"] == target.tokenizer_json
        async with session.get(http + "/v1/tokenizer", headers={"If-None-Match": tag}) as response:
            assert response.status == 304
        async with session.get(http + "/v1/verify") as response:
            assert response.status == 400
        verifier.engine.stop()
        async with session.get(http + "/readyz") as response:
            assert response.status == 503
        async with session.get(http + "/healthz") as response:
            assert response.status == 200


# --- a draft that is not there yet --------------------------------------------------------------------------------


class HeldLoader:
    """Stands in front of the loader until released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.entered = threading.Event()
        self.loads = 0
        self._load = device._load_drafter
        monkeypatch.setattr(device, "_load_drafter", self)

    def __call__(self, *arguments: Any) -> Any:
        self.loads += 1
        self.entered.set()
        assert self.release.wait(GRACE)
        return self._load(*arguments)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> HeldLoader:
    return HeldLoader(monkeypatch)


async def test_text_streams_while_the_draft_loads_and_then_it_drafts(loader: HeldLoader, right_draft: Path) -> None:
    target = held_target()
    options: dict[str, Any] = {"temperature": 0.8, "seed": 3}
    async with running_verifier(target) as verifier, AsyncEdgeClient(verifier.url, draft=right_draft) as client:
        async with client.stream(PROMPT, max_tokens=2000, **options) as stream:
            target.allow(5)
            rounds = 0
            async for event in stream:
                rounds += isinstance(event, RoundCompleted)
                if rounds == 5:
                    break
            assert loader.entered.is_set()
            assert client.status.mode == "loading"
            assert stream.partial_result().token_ids == reference_tokens(target, PROMPT, 5, **options)
            loader.release.set()
            assert (await wait_for(client.wait_for_draft())).mode == "drafting"
            await wait_for(_step_until_accepted(target, verifier, stream))
            target.let_go()
            # Another stream meets the draft loaded already.
            second = await wait_for(client.generate(PROMPT, max_tokens=20, **options))
        partial = stream.partial_result()
    assert second.token_ids == reference_tokens(target, PROMPT, 20, **options)
    assert partial.stats.sent_tokens > 0
    assert partial.token_ids == reference_tokens(target, PROMPT, len(partial.token_ids), **options)
    assert loader.loads == 1


async def test_a_stream_that_ends_before_the_draft_is_there(loader: HeldLoader, right_draft: Path) -> None:
    async with (
        running_verifier(endless_table()) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft) as client,
    ):
        result = await wait_for(client.generate(PROMPT, max_tokens=30))
        assert result.token_ids == reference_tokens(endless_table(), PROMPT, 30)
        assert result.stats.sent_tokens == 0
        assert client.status.mode == "loading"
        loader.release.set()


async def test_a_draft_that_fails_to_load_late(
    loader: HeldLoader, right_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream that is under way is told, and goes on."""

    def fail(*_: Any) -> Any:
        raise DrafterError("the disk is on fire; draft without it")

    monkeypatch.setattr(loader, "_load", fail)
    target = held_target()
    async with running_verifier(target) as verifier, AsyncEdgeClient(verifier.url, draft=right_draft) as client:
        async with client.stream(PROMPT, max_tokens=30) as stream:
            target.allow(2)
            await target.until(lambda: target.steps == 2)
            loader.release.set()
            assert (await wait_for(client.wait_for_draft())).reason == "the disk is on fire; draft without it"
            target.let_go()
            events = [event async for event in stream]
        reasons = [event.reason for event in events if type(event).__name__ == "Degraded"]
        assert reasons == ["the disk is on fire; draft without it"]
        assert stream.partial_result().token_ids == reference_tokens(target, PROMPT, 30)


async def test_a_required_draft_that_fails_to_load_late(
    loader: HeldLoader, right_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes to find out, there is no text without it."""

    def fail(*_: Any) -> Any:
        raise DrafterError("the disk is on fire; draft without it")

    monkeypatch.setattr(loader, "_load", fail)
    target = RecordingTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft, require_draft=True) as client,
    ):
        generation = asyncio.create_task(client.generate(PROMPT, max_tokens=30))
        assert await asyncio.to_thread(loader.entered.wait, GRACE)
        loader.release.set()
        with pytest.raises(DrafterError, match="on fire"):
            await wait_for(generation)
        with pytest.raises(DrafterError, match="on fire"):
            await wait_for(client.generate(PROMPT, max_tokens=30))
    assert target.fed == 0


def test_the_sync_client_streams_while_the_draft_loads(loader: HeldLoader, right_draft: Path) -> None:
    """And closing it meanwhile waits for the load, so that nothing runs on."""
    ready, stop, address = threading.Event(), threading.Event(), []

    def serve() -> None:
        async def run() -> None:
            async with running_verifier(endless_table()) as verifier:
                address.append(verifier.url)
                ready.set()
                await asyncio.to_thread(stop.wait, GRACE)

        asyncio.run(run())

    server = threading.Thread(target=serve)
    server.start()
    try:
        assert ready.wait(GRACE)
        with EdgeClient(address[0], draft=right_draft) as client:
            with client.stream(PROMPT, max_tokens=30) as stream:
                text = "".join(stream.text_stream)
                result = stream.get_final_result()
            assert text == result.text
            assert result.token_ids == reference_tokens(endless_table(), PROMPT, 30)
            assert client.status.mode == "loading"
            loader.release.set()
    finally:
        stop.set()
        server.join()


# --- a device that must not draft now -----------------------------------------------------------------------------


async def test_the_hook_that_stops_drafting(right_draft: Path) -> None:
    asked = asyncio.Event()
    target = held_target()

    def paused() -> bool:
        asked.set()
        return True

    async with (
        running_verifier(target) as verifier,
        AsyncEdgeClient(verifier.url, draft=right_draft, pause_drafting=paused) as client,
    ):
        await client.wait_for_draft()
        generation = asyncio.create_task(client.generate(PROMPT, max_tokens=200))
        await wait_for(asked.wait())
        target.let_go()
        result = await wait_for(generation)
    assert result.token_ids == reference_tokens(target, PROMPT, 200)
    assert result.stats.draft_steps == result.stats.sent_tokens == 0


async def test_misuse_of_a_stream_is_told_in_words(right_draft: Path) -> None:
    async with running_verifier(endless_table()) as verifier:
        async with AsyncEdgeClient(verifier.url, draft=right_draft) as client:
            unentered = client.stream(PROMPT)
            with pytest.raises(VerifierError, match="has not started"):
                await unentered.get_final_result()
            async with client.stream(PROMPT, max_tokens=5) as stream:
                pieces = [event async for event in stream if isinstance(event, TextDelta)]
                assert "".join(piece.text for piece in pieces) == (await stream.get_final_result()).text
                assert [event async for event in stream] == []
        with pytest.raises(ValueError, match="is closed"):
            await client.generate(PROMPT)


async def _step_until_accepted(target: HeldTarget, verifier: RunningVerifier, stream: AsyncStream) -> None:
    """One step after another, each once the device has drafted on: a target that ran free would leave it behind."""
    while not verifier.engine.counters.accepted:
        sent = stream.partial_result().stats.sent_tokens
        target.allow(1)
        while stream.partial_result().stats.sent_tokens == sent:
            await asyncio.sleep(0)
