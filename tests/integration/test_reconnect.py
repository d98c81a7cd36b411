"""A verifier lost at any moment: the answer goes on at another, without a gap, without a token twice."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client import (
    AsyncEdgeClient,
    Degraded,
    Reconnecting,
    Result,
    device,
)
from draftwire.edge_client.backoff import Backoff
from draftwire.edge_client.wan_relay import Conditions, Cut, WanRelay
from draftwire.protocol.errors import VerifierRefusedError
from draftwire.protocol.messages import Commit, Open, Opened
from draftwire.protocol.session import Session
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..grace import wait_for
from .chi_squared import fit, joint_distribution, transition_fit
from .lost_verifiers import (
    COUNT,
    MODES,
    PROMPT,
    STAGES,
    WAYS,
    break_off,
    expected_tokens,
    faulty,
    followed,
    paced_table,
)
from .running_verifier import RunningVerifier, running_verifier
from .scripted_verifier import scripted_verifier, welcome
from .table_bundle import write_bundle, wrong_table
from .table_targets import HeldTarget, PacedTarget, endless_table, reference_tokens

PROMPT_SMALL = [1, 3, 2]

# --- a verifier that is lost at one stage, and another that stands by ------------------------------------------------


@asynccontextmanager
async def recorded(verifier: RunningVerifier, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[Open]]:
    """The OPENs that reach a verifier."""
    requests: list[Open] = []
    admit = verifier.engine.open

    def record(owner: Any, request: Open) -> None:
        requests.append(request)
        admit(owner, request)

    monkeypatch.setattr(verifier.engine, "open", record)
    yield requests


@pytest.mark.parametrize("mode", ["greedy", "coupled", "rejection"])
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("draft", [None, "right"])
async def test_lost_at_every_stage(
    stage: str, mode: str, draft: str | None, drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = expected_tokens(mode) or reference_tokens(endless_table(), PROMPT, COUNT, temperature=0.8, seed=3)
    committed = {"first commit": 1, "middle": COUNT // 2, "last commit": COUNT}.get(stage, 0)
    for way in WAYS:
        met: list[Open] = []
        async with (
            running_verifier(endless_table()) as standby,
            recorded(standby, monkeypatch) as requests,
            scripted_verifier(faulty(stage, way, tokens, met=met)) as first,
            AsyncEdgeClient([first, standby.url], draft=drafts[draft] if draft else None) as client,
        ):
            result, events = await wait_for(followed(client.stream(PROMPT, max_tokens=COUNT, **MODES[mode])))
        assert len(result.token_ids) == COUNT
        assert result.token_ids[:committed] == tokens[:committed]
        assert result.finish_reason == "length"
        if mode != "rejection":
            assert result.token_ids == tokens
        told = [event.reason for event in events if isinstance(event, Reconnecting)]
        if stage == "last commit":  # every token is there, and nobody is asked for more
            assert requests == []
            assert result.stats.target_passes == COUNT
            continue
        (request,) = requests
        assert request.token_ids == (*PROMPT, *tokens[:committed])
        assert (request.prompt_length, request.max_tokens) == (len(PROMPT), COUNT - committed)
        assert request.seed == result.seed
        if stage != "hello":  # that first address was never connected to
            assert result.stats.reconnects == 1
            assert len(told) == 1
        if met:
            assert (met[0].seed, met[0].params, met[0].stop_ids) == (request.seed, request.params, request.stop_ids)


async def test_a_stop_token_whose_end_is_lost_is_an_end() -> None:
    """And its reason is told as the verifier would have told it."""

    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(welcome(endless_table())))
        session.receive(await ws.receive_bytes())
        for message in (Opened(stream=1), *(Commit(stream=1, path=0, accepted=0, token=t) for t in (5, 6, 0))):
            await ws.send_bytes(session.send(message))
        break_off(ws)

    async with scripted_verifier(script) as url, AsyncEdgeClient(url, reconnect_seconds=0) as client:
        result = await wait_for(client.generate(PROMPT, max_tokens=COUNT))
    assert (result.token_ids, result.text, result.finish_reason) == ((5, 6, 0), "ef", "stop")


async def test_refused_unreachable_and_silent_addresses_are_passed_over() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async def silent(ws: web.WebSocketResponse, _: Session) -> None:
        await ws.receive()

    async with (
        running_verifier(endless_table()) as verifier,
        await asyncio.start_server(hang_up, "127.0.0.1", 0) as hanging,
        scripted_verifier(silent) as mute,
    ):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            urls = [
                f"ws://127.0.0.1:{taken.getsockname()[1]}",
                f"ws://127.0.0.1:{hanging.sockets[0].getsockname()[1]}",
                f"{verifier.url}/nowhere",
                mute,
                verifier.url,
            ]
            async with AsyncEdgeClient(urls, timeout=0.5) as client:
                result = await wait_for(client.generate(PROMPT, max_tokens=COUNT))
    assert result.token_ids == expected_tokens("greedy")
    assert result.stats.reconnects == 0


async def test_another_target_does_not_take_an_answer_over() -> None:
    """Its text would be another model's, and nobody would know."""
    tokens = expected_tokens("greedy")
    assert tokens is not None
    async with (
        running_verifier(endless_table(vocabulary_size=12)) as stranger,
        scripted_verifier(faulty("middle", "breaks", tokens)) as first,
        AsyncEdgeClient([first, stranger.url]) as client,
    ):
        async with client.stream(PROMPT, max_tokens=COUNT) as stream:
            with pytest.raises(
                VerifierRefusedError, match="serves table-12-5, but the answer was begun by table-24-5"
            ) as caught:
                await wait_for(stream.get_final_result())
            assert "\n" not in str(caught.value)
        assert stream.partial_result().token_ids == tokens[: COUNT // 2]
        # A new answer is that target's from its first token on.
        result = await wait_for(client.generate(PROMPT, max_tokens=5))
        assert result.token_ids == reference_tokens(stranger.target, PROMPT, 5)


# --- a network that breaks anywhere -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loop_runner() -> Iterator[Callable[[Awaitable[Any]], Any]]:
    """For tests of hypothesis, which are not coroutines."""
    with asyncio.Runner() as runner:
        yield lambda awaitable: runner.run(awaitable)  # type: ignore[arg-type]


@pytest.fixture
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks for a verifier waits a fifth of what it does in use, which is most of what these tests take."""
    monkeypatch.setitem(Backoff.__init__.__kwdefaults__, "base", Backoff.__init__.__kwdefaults__["base"] / 5)


async def cut_answers(draft: Path | None, mode: str, cuts: list[Cut], seed: int) -> list[Result]:
    """Two streams side by side through a network that breaks."""
    before = len(asyncio.all_tasks())
    async with (
        running_verifier(paced_table()) as verifier,
        WanRelay(
            "127.0.0.1", verifier.port, conditions=Conditions(delay=0.001, jitter=0.003), cuts=cuts, seed=seed
        ) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=draft, threads=1, reconnect_seconds=30) as client,
    ):
        streams = [client.stream(PROMPT, max_tokens=COUNT, **MODES[mode]) for _ in range(2)]
        answers = await wait_for(asyncio.gather(*map(followed, streams)))
        if draft is not None:  # otherwise the tokenizer comes the same way, on connections of its own
            assert relay.counters.connections <= relay.counters.cuts + 1  # one search for both, however often it broke
    while len(asyncio.all_tasks()) > before:  # the server's side of the last connection goes a little later
        await asyncio.sleep(0)
    return [result for result, _ in answers]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    places=st.lists(st.tuples(st.integers(1, 420), st.sampled_from(["down", "up"])), min_size=1, max_size=4),
    seed=st.integers(0, 2**16),
)
@pytest.mark.usefixtures("soon_again")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("draft", ["right", "wrong", None])
def test_cut_at_any_byte_it_is_the_same_text(
    draft: str | None,
    mode: str,
    drafts: dict[str, Path],
    loop_runner: Callable[[Awaitable[Any]], Any],
    places: list[tuple[int, Any]],
    seed: int,
) -> None:
    cuts = [Cut(after_bytes=place, way=way) for place, way in places]
    results = loop_runner(cut_answers(drafts[draft] if draft else None, mode, cuts, seed))
    expected = expected_tokens(mode)
    assert [len(result.token_ids) for result in results] == [COUNT, COUNT]
    if expected is not None:
        assert [result.token_ids for result in results] == [expected, expected]


@pytest.mark.usefixtures("soon_again")
@pytest.mark.parametrize("mode", MODES)
async def test_cut_again_and_again_in_the_answer(mode: str, right_draft: Path) -> None:
    """Each connection brings a few tokens and breaks; drafting goes on, and so does the text."""
    chance = random.Random(mode)
    cuts = [Cut(after_bytes=330 + chance.randrange(60)) for _ in range(8)]
    (result, other) = await cut_answers(right_draft, mode, cuts, 1)
    for answer in (result, other):
        assert len(answer.token_ids) == COUNT
        assert answer.stats.reconnects >= 3
    if mode != "rejection":
        assert result.token_ids == other.token_ids == expected_tokens(mode)


async def test_what_was_guessed_before_the_cut_counts_after_it(right_draft: Path) -> None:
    """The path and the drafter's cache outlive the connection: the first step of the new stream finds a draft."""
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.0) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=right_draft, threads=1) as client,
    ):
        await client.wait_for_draft()
        async with client.stream(PROMPT, max_tokens=COUNT, controller="fixed", look_ahead=8) as stream:
            await target.until(lambda: target.entered == 1)
            while stream.partial_result().stats.sent_tokens < 8:
                await asyncio.sleep(0)
            drafted = stream.partial_result().stats.draft_steps
            relay.cut()
            while stream.partial_result().stats.sent_tokens < 16:  # sent again, and not drafted again
                await asyncio.sleep(0)
            assert stream.partial_result().stats.draft_steps == drafted == 8
            await client.ping()  # the pong comes after the verifier has read the frames before it
            target.let_go()
            result = await wait_for(stream.get_final_result())
    assert result.token_ids == expected_tokens("greedy")
    assert result.stats.accepted > 0


async def test_a_retained_context_is_lost_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn that was to send only what is new sends all, and comes out the same."""
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with (
        running_verifier(target) as verifier,
        recorded(verifier, monkeypatch) as requests,
        WanRelay("127.0.0.1", verifier.port, delay=0.0) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", retain_context=True) as client,
    ):
        target.allow(5)
        first = await wait_for(client.generate(PROMPT, max_tokens=5))
        prompt = [*PROMPT, *first.token_ids, 4, 2]
        async with client.stream(prompt, max_tokens=COUNT) as stream:
            target.allow(3)
            while len(stream.partial_result().token_ids) < 2:
                await asyncio.sleep(0)
            relay.cut()
            target.let_go()
            result = await wait_for(stream.get_final_result())
    assert result.token_ids == reference_tokens(target, prompt, COUNT)
    assert [request.prefix is None for request in requests] == [True, False, True]
    assert requests[-1].token_ids[: len(prompt)] == tuple(prompt)
    assert requests[-1].prompt_length == result.prompt_tokens == len(prompt)


async def test_text_comes_at_once_though_the_draft_is_still_loading(
    right_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, load = threading.Event(), device._load_drafter

    def slow(*arguments: Any) -> Any:
        assert release.wait(60)
        return load(*arguments)

    monkeypatch.setattr(device, "_load_drafter", slow)
    tokens = expected_tokens("greedy")
    assert tokens is not None
    try:
        async with (
            running_verifier(endless_table()) as standby,
            scripted_verifier(faulty("middle", "breaks", tokens)) as first,
            AsyncEdgeClient([first, standby.url], draft=right_draft) as client,
        ):
            result, events = await wait_for(followed(client.stream(PROMPT, max_tokens=COUNT)))
            assert client.status.mode == "loading"
            release.set()
    finally:
        release.set()
    assert result.token_ids == tokens
    assert not any(isinstance(event, Degraded) for event in events)


# --- rejection mode ---------------------------------------------------------------------------------------------------


SMALL = {"vocabulary_size": 5, "seed": 3, "scale": 1.0, "eos_bias": -1e4}
STREAMS, ROUNDS, TOKENS = 32, 20, 5


async def test_by_rejection_what_follows_a_loss_is_distributed_as_the_target(tmp_path: Path) -> None:
    """Every stream loses its connection in mid-answer, with drafts under way and with tokens committed but unheard."""
    bundle = write_bundle(tmp_path / "draft", TableTarget(**SMALL), wrong_table(TableTarget(**SMALL)))
    answers: list[tuple[int, ...]] = []
    resumed = 0
    async with (
        running_verifier(PacedTarget(seconds=0.001, **SMALL)) as verifier,
        WanRelay("127.0.0.1", verifier.port, delay=0.001) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=bundle, threads=1) as client,
    ):
        await client.wait_for_draft()
        for round_ in range(ROUNDS):
            options: dict[str, Any] = {"temperature": 0.9, "mode": "rejection", "controller": "fixed", "look_ahead": 2}

            async def generate(seed: int, options: dict[str, Any] = options) -> Result:
                async with client.stream(PROMPT_SMALL, seed=seed, max_tokens=TOKENS, **options) as stream:
                    async for _ in stream:
                        relay.cut()  # once a stream has heard of a token, all lose what they have not heard
                        break
                    return await stream.get_final_result()

            results = await wait_for(asyncio.gather(*(generate(1000 * round_ + number) for number in range(STREAMS))))
            answers += [result.token_ids for result in results]
            resumed += sum(result.stats.reconnects > 0 for result in results)
    target = TableTarget(**SMALL)

    def after(context: tuple[int, ...]) -> dict[int, float]:
        logits = np.asarray(target.logits_after(list(context)[-2:]), np.float64) / 0.9
        p = np.exp(logits - logits.max())
        return {token: float(mass) for token, mass in enumerate(p / p.sum()) if mass > 1e-300}

    assert resumed > len(answers) / 2
    assert transition_fit(answers, prompt=PROMPT_SMALL, order=2, distribution=after) > 1e-6
    first = Counter(answer[:2] for answer in answers)
    assert fit(first, joint_distribution(PROMPT_SMALL, 2, lambda context: after(context[-2:]))) > 1e-6
