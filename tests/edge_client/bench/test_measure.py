from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from draftwire.edge_client.bench.measure import Answer, measure
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.bench.prompts import PROMPTS
from draftwire.edge_client.events import Degraded, Event, Finished, Result, RoundCompleted, TextDelta
from draftwire.edge_client.stats import Stats
from draftwire.protocol.errors import DrafterError, VerifierError


def finished(committed: int) -> Finished:
    stats = Stats(committed=committed, ttft_seconds=1.0, total_seconds=2.0, target_passes=committed)
    ids = tuple(range(committed))
    return Finished(result=Result(text="", token_ids=ids, finish_reason="stop", seed=3, prompt_tokens=2, stats=stats))


def committed(*token_ids: int) -> RoundCompleted:
    return RoundCompleted(token_ids=token_ids, accepted=len(token_ids) - 1, rtt=0.05, queued=0.01, computed=0.03)


class ScriptedClient:
    """A client whose every generation is the same events."""

    def __init__(self, *events: Event) -> None:
        self.events = events
        self.asked: list[tuple[Any, dict[str, Any]]] = []

    @asynccontextmanager
    async def stream(self, prompt: Sequence[int], **options: Any) -> AsyncIterator[AsyncIterator[Event]]:
        self.asked.append((prompt, options))

        async def play() -> AsyncIterator[Event]:
            for event in self.events:
                yield event

        yield play()


async def answer(client: ScriptedClient) -> Answer:
    mode = parse_modes(["pipelined"])[-1]
    return await measure(
        client,  # type: ignore[arg-type]
        PROMPTS[0],
        [4, 2],
        mode=mode,
        variant=mode.variants[0],
        seed=3,
        repeat=1,
        temperature=0.7,
    )


async def test_keeps_every_commit_and_the_result() -> None:
    client = ScriptedClient(
        committed(0), TextDelta(text="a", token_ids=(0,), guessed=False), committed(1, 2), finished(3)
    )
    found = await answer(client)
    assert [(each.tokens, each.accepted, each.rtt) for each in found.rounds] == [(1, 0, 0.05), (2, 1, 0.05)]
    assert 0 <= found.rounds[0].at <= found.rounds[1].at
    assert (found.token_ids, found.mode, found.prompt, found.repeat) == ((0, 1, 2), "pipelined", PROMPTS[0].name, 1)
    assert found.seconds_per_token == 0.5
    [(prompt, options)] = client.asked
    assert prompt == [4, 2]
    assert options == {"seed": 3, "temperature": 0.7, "controller": "fixed", "look_ahead": 16, "policy": "cost"}


async def test_an_answer_whose_draft_failed_is_no_measurement() -> None:
    with pytest.raises(DrafterError, match="drafting ended early: too hot"):
        await answer(ScriptedClient(committed(0), Degraded(reason="too hot"), finished(3)))


async def test_one_token_has_no_speed() -> None:
    with pytest.raises(VerifierError, match="no speed"):
        await answer(ScriptedClient(committed(0), finished(1)))


async def test_events_that_break_off_are_no_measurement() -> None:
    with pytest.raises(VerifierError, match="without a result"):
        await answer(ScriptedClient(committed(0)))
