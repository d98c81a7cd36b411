"""The draft alone, where that was asked for: what it writes, and that nobody can take it for the target's."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client import (
    AsyncEdgeClient,
    AsyncStream,
    Degraded,
    EdgeClient,
    Finished,
    Reconnecting,
    Result,
    TextDelta,
)
from draftwire.protocol.errors import (
    AuthenticationError,
    BusyError,
    ConnectionLostError,
    DrafterError,
    DraftwireError,
    ErrorCode,
    InvalidParameterError,
    VerifierUnreachableError,
)
from draftwire.protocol.messages import Error, Open

from ..grace import wait_for
from .lost_verifiers import COUNT, PROMPT, expected_tokens, faulty
from .running_verifier import running_verifier
from .scripted_verifier import scripted_verifier, welcome
from .table_bundle import right_table, seal, write_bundle
from .table_targets import endless_table, reference_tokens

COUPLED: dict[str, Any] = {"temperature": 0.8, "seed": 11}


@pytest.fixture
def absent() -> Iterator[str]:
    """An address that is taken, so that nobody else gets it, and where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="module")
def other_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft of the same vocabulary and of another mind."""
    return write_bundle(tmp_path_factory.mktemp("other") / "draft", endless_table(), right_table(other_mind()))


def other_mind() -> TableTarget:
    return TableTarget(vocabulary_size=24, seed=77, eos_bias=-1e4)


async def events_of(stream: AsyncStream) -> tuple[list[Any], Result]:
    async with stream:
        events = [event async for event in stream]
        return events, await stream.get_final_result()


@pytest.mark.parametrize("options", [{"temperature": 0.0}, COUPLED], ids=["greedy", "coupled"])
async def test_in_mid_answer(options: dict[str, Any], other_draft: Path) -> None:
    """The target's tokens up to the loss, then the draft's own with the same noise; each is marked as what it is."""
    tokens = reference_tokens(endless_table(), PROMPT, COUNT, **options)
    async with (
        scripted_verifier(faulty("middle", "breaks", tokens)) as first,
        AsyncEdgeClient(first, draft=other_draft, on_verifier_loss="draft_only", reconnect_seconds=0) as client,
    ):
        events, result = await wait_for(events_of(client.stream(PROMPT, max_tokens=COUNT, **options)))
    half = COUNT // 2
    params = {name: value for name, value in options.items() if name != "seed"}
    alone = reference_tokens(
        other_mind(), (*PROMPT, *tokens[:half]), COUNT - half, seed=options.get("seed", 0), **params
    )
    assert alone != tokens[half:]
    assert result.token_ids == tokens[:half] + alone
    assert result.unverified_tokens == result.stats.unverified == COUNT - half
    assert result.stats.committed == half
    assert result.finish_reason == "length"
    assert result.to_dict()["unverified_tokens"] == COUNT - half
    texts = [event for event in events if isinstance(event, TextDelta)]
    assert tuple(t for event in texts if event.verified for t in event.token_ids) == tokens[:half]
    assert tuple(t for event in texts if not event.verified for t in event.token_ids) == alone
    assert "".join(event.text for event in texts) == result.text
    # The caller is told before the first of them.
    kinds = [type(event).__name__ for event in events if not (isinstance(event, TextDelta) and event.verified)]
    told = [event for event in events if isinstance(event, Degraded)]
    assert [event.mode for event in told] == ["draft-only"]
    assert told[0].reason.startswith("the connection broke off")
    assert events.index(told[0]) < next(i for i, e in enumerate(events) if isinstance(e, TextDelta) and not e.verified)
    assert kinds[-1] == "Finished"


@pytest.mark.parametrize("prompt", [PROMPT, "agc", [{"role": "user", "content": "agc"}]], ids=["ids", "text", "chat"])
async def test_from_the_very_start(prompt: Any, absent: str, tmp_path: Path) -> None:
    """All it needs is in the bundle."""
    folder = write_bundle(tmp_path / "draft", endless_table(), right_table(other_mind()))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    seal(folder)
    async with AsyncEdgeClient(absent, draft=folder, on_verifier_loss="draft_only") as client:
        for _ in range(2):  # each answer looks for a verifier first
            events, result = await wait_for(events_of(client.stream(prompt, max_tokens=COUNT, **COUPLED)))
            assert result.token_ids == reference_tokens(other_mind(), PROMPT, COUNT, **COUPLED)
            assert result.unverified_tokens == COUNT
            assert result.prompt_tokens == len(PROMPT)
            assert result.stats.ttft_seconds is not None
            assert [type(event) for event in events[:1]] == [Degraded]
            assert absent in events[0].reason
            assert "\n" not in events[0].reason


async def test_a_verifier_that_is_there_again_has_the_next_answer(other_draft: Path) -> None:
    tokens = expected_tokens("greedy")
    assert tokens is not None
    met: list[Open] = []
    async with (
        running_verifier(endless_table()) as verifier,
        scripted_verifier(faulty("middle", "breaks", tokens, met=met)) as first,
    ):
        urls = [first, verifier.url]
        async with AsyncEdgeClient(
            urls, draft=other_draft, on_verifier_loss="draft_only", reconnect_seconds=0
        ) as client:
            _, alone = await wait_for(events_of(client.stream(PROMPT, max_tokens=COUNT)))
            _, again = await wait_for(events_of(client.stream(PROMPT, max_tokens=COUNT)))
    assert alone.unverified_tokens == COUNT // 2
    assert again.unverified_tokens == 0
    assert again.token_ids == tokens


async def test_a_verifier_is_searched_for_first(other_draft: Path, absent: str) -> None:
    tokens = expected_tokens("greedy")
    assert tokens is not None
    async with (
        running_verifier(endless_table()) as standby,
        scripted_verifier(faulty("middle", "breaks", tokens)) as first,
        AsyncEdgeClient([first, absent, standby.url], draft=other_draft, on_verifier_loss="draft_only") as client,
    ):
        events, result = await wait_for(events_of(client.stream(PROMPT, max_tokens=COUNT)))
    assert result.token_ids == tokens
    assert result.unverified_tokens == 0
    assert not any(isinstance(event, Degraded) for event in events)
    assert any(isinstance(event, Reconnecting) for event in events)


async def test_a_stop_id_ends_it(absent: str, tmp_path: Path) -> None:
    """The one the verifier had named, or else the bundle's."""
    mind = TableTarget(vocabulary_size=24, seed=77, eos_bias=2.5)
    expected = reference_tokens(mind, PROMPT, 200)
    assert 1 < len(expected) < 200
    folder = write_bundle(tmp_path / "draft", endless_table(), right_table(mind))
    async with AsyncEdgeClient(absent, draft=folder, on_verifier_loss="draft_only") as client:
        result = await wait_for(client.generate(PROMPT, max_tokens=200))
        assert (result.token_ids, result.finish_reason) == (expected, "stop")
        ignoring = await wait_for(client.generate(PROMPT, max_tokens=len(expected) + 3, ignore_eos=True))
        assert len(ignoring.token_ids) == len(expected) + 3


# --- where it must not be ---------------------------------------------------------------------------------------------


async def test_by_default_a_loss_is_raised_with_all_that_was_committed(right_draft: Path) -> None:
    tokens = expected_tokens("greedy")
    assert tokens is not None
    async with (
        scripted_verifier(faulty("middle", "closes", tokens)) as first,
        AsyncEdgeClient(first, draft=right_draft, reconnect_seconds=0) as client,
    ):
        async with client.stream(PROMPT, max_tokens=COUNT) as stream:
            with pytest.raises(ConnectionLostError, match="1001"):
                await wait_for(stream.get_final_result())
        partial = stream.partial_result()
    assert (partial.token_ids, partial.finish_reason) == (tokens[: COUNT // 2], "error")
    assert partial.unverified_tokens == 0


async def test_a_search_in_vain_says_that_there_was_one(right_draft: Path, absent: str) -> None:
    tokens = expected_tokens("greedy")
    assert tokens is not None
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(scripted_verifier(faulty("middle", "breaks", tokens)))
        async with AsyncEdgeClient([first, absent], draft=right_draft, reconnect_seconds=0.3) as client:
            async with client.stream(PROMPT, max_tokens=COUNT) as stream:
                async for event in stream:
                    if isinstance(event, Reconnecting):
                        break
                await stack.aclose()
                with pytest.raises(ConnectionLostError, match="none can be reached") as caught:
                    await wait_for(stream.get_final_result())
            assert "\n" not in str(caught.value)
            assert isinstance(caught.value.__cause__, VerifierUnreachableError)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Error(stream=1, code=ErrorCode.INTERNAL, message="it broke"), DraftwireError),
        (Error(stream=1, code=ErrorCode.BUSY, message="full"), BusyError),
        (Error(stream=1, code=ErrorCode.INVALID_PARAMETER, message="no"), DraftwireError),
        (Error(stream=0, code=ErrorCode.UNAUTHORIZED, message="the key is not accepted any more"), AuthenticationError),
    ],
    ids=lambda value: value.code.name if isinstance(value, Error) else "",
)
async def test_a_verifier_that_is_there_and_says_no_is_no_loss(
    error: Error, kind: type[DraftwireError], right_draft: Path
) -> None:
    async def script(ws: Any, session: Any) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(welcome(endless_table())))
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(error))

    async with (
        scripted_verifier(script) as url,
        AsyncEdgeClient(url, draft=right_draft, on_verifier_loss="draft_only", reconnect_seconds=0) as client,
    ):
        async with client.stream(PROMPT, max_tokens=COUNT) as stream:
            with pytest.raises(kind):
                await wait_for(stream.get_final_result())
        assert stream.partial_result().unverified_tokens == 0


async def test_a_draft_that_cannot_be_loaded_does_not_write(absent: str, right_draft: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(right_draft, tmp_path / "broken"))
    (broken / "model.onnx").write_bytes(b"no graph")
    for folder in (broken, tmp_path / "nowhere"):
        async with AsyncEdgeClient(absent, draft=folder, on_verifier_loss="draft_only") as client:
            with pytest.raises(VerifierUnreachableError):
                await wait_for(client.generate(PROMPT, max_tokens=COUNT))


@pytest.mark.parametrize(("stage", "committed"), [("welcome", 0), ("middle", COUNT // 2)])
async def test_a_draft_of_another_vocabulary_does_not_write(stage: str, committed: int, tmp_path: Path) -> None:
    stranger = TableTarget(vocabulary_size=16, seed=5)
    folder = write_bundle(tmp_path / "stranger", stranger, right_table(stranger))
    tokens = expected_tokens("greedy")
    assert tokens is not None
    async with (
        scripted_verifier(faulty(stage, "breaks", tokens)) as first,
        AsyncEdgeClient(first, draft=folder, on_verifier_loss="draft_only", reconnect_seconds=0) as client,
    ):
        async with client.stream(PROMPT, max_tokens=COUNT) as stream:
            with pytest.raises(ConnectionLostError):
                await wait_for(stream.get_final_result())
        assert stream.partial_result().token_ids == tokens[:committed]


async def test_a_draft_whose_context_is_full_says_so(absent: str, right_draft: Path) -> None:
    async with AsyncEdgeClient(absent, draft=right_draft, on_verifier_loss="draft_only") as client:
        async with client.stream([3] * 4094, max_tokens=COUNT) as stream:
            with pytest.raises(DrafterError, match="context"):
                await wait_for(stream.get_final_result())
        assert len(stream.partial_result().token_ids) == 2


async def test_an_app_that_pauses_drafting_pauses_this_too(absent: str, right_draft: Path) -> None:
    paused, asked = True, asyncio.Event()

    def hook() -> bool:
        asked.set()
        return paused

    async with AsyncEdgeClient(absent, draft=right_draft, on_verifier_loss="draft_only", pause_drafting=hook) as client:
        generating = asyncio.create_task(client.generate(PROMPT, max_tokens=COUNT))
        await wait_for(asked.wait())
        assert not generating.done()
        paused = False
        assert (await wait_for(generating)).unverified_tokens == COUNT


async def test_closing_ends_it(absent: str, right_draft: Path) -> None:
    before = len(asyncio.all_tasks())
    async with AsyncEdgeClient(absent, draft=right_draft, on_verifier_loss="draft_only") as client:
        async with client.stream(PROMPT, max_tokens=4000) as stream:
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
        partial = stream.partial_result()
        assert 0 < partial.unverified_tokens < 4000
        assert partial.finish_reason == "cancelled"
    while len(asyncio.all_tasks()) > before:
        await asyncio.sleep(0)


@pytest.mark.parametrize("value", ["draft-only", "", None, 1, ["raise"]])
def test_there_are_two_ways(value: Any, right_draft: Path) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        AsyncEdgeClient("ws://host", draft=right_draft, on_verifier_loss=value)
    assert caught.value.field == "on_verifier_loss"


def test_without_a_draft_there_is_nothing_to_go_on_with() -> None:
    with pytest.raises(InvalidParameterError, match="needs a draft"):
        AsyncEdgeClient("ws://host", on_verifier_loss="draft_only")


def test_the_sync_client_too(absent: str, right_draft: Path) -> None:
    with EdgeClient(absent, draft=right_draft, on_verifier_loss="draft_only") as client:
        with client.stream(PROMPT, max_tokens=COUNT) as stream:
            events = list(stream)
        assert isinstance(events[0], Degraded)
        assert isinstance(events[-1], Finished)
        assert stream.get_final_result().unverified_tokens == COUNT
