"""The streams of one call, on an engine that is stepped by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.openai.choice import Choice
from draftwire.cloud_verifier.openai.generation import Delta, Generation, GenerationError
from draftwire.cloud_verifier.openai.vocabulary import Vocabulary
from draftwire.cloud_verifier.service.allowance import Allowance
from draftwire.cloud_verifier.service.config import KeyRules
from draftwire.cloud_verifier.service.http import Visitor
from draftwire.cloud_verifier.service.quota import Buckets
from draftwire.protocol.errors import BusyError, ErrorCode, InvalidParameterError
from draftwire.protocol.messages import Commit, Limits, Open, Opened
from draftwire.protocol.sampling import SamplingParams

from .openai_rig import endless

PROMPT = (5, 9, 14, 3)
LIMITS = Limits(max_context=200, max_streams=2, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)


class Rig:
    """A generation over an engine whose thread does not run."""

    def __init__(self, *, count: int = 1, stops: tuple[str, ...] = (), visitor: Visitor | None = None, **open_: Any):
        target = endless()
        self.engine = Engine(target, limits=LIMITS)
        fields: dict[str, Any] = {
            "token_ids": PROMPT,
            "prompt_length": len(PROMPT),
            "params": SamplingParams(temperature=0.8),
            "max_tokens": 5,
            **open_,
        }
        requests = [Open(stream=index + 1, seed=index, **fields) for index in range(count)]
        vocabulary = Vocabulary(target)
        self.choices = [
            Choice(index=index, decoder=vocabulary, prompt_ids=PROMPT, stops=stops) for index in range(count)
        ]
        self.generation = Generation(self.engine, visitor or Visitor(request_id="r"), requests, self.choices)
        self.texts = [""] * count

    async def started(self) -> None:
        """Start, with the engine's first step beside it."""
        task = asyncio.create_task(self.generation.start())
        await asyncio.sleep(0)
        self.engine.step()
        await asyncio.wait_for(task, 10)

    def take(self, deltas: list[Delta]) -> None:
        for delta in deltas:
            self.texts[delta.choice.index] += delta.text

    async def finish(self) -> None:
        """Step until the generation is done."""
        while not self.generation.done:
            self.engine.step()
            self.take(await self.generation.more(within=10))


async def test_several_choices_grow_side_by_side_and_differ() -> None:
    rig = Rig(count=2)
    await rig.started()
    await rig.finish()
    assert [choice.tokens for choice in rig.choices] == [5, 5]
    assert [choice.finish_reason for choice in rig.choices] == ["length", "length"]
    assert len(set(rig.texts)) == 2
    assert rig.engine.active_streams == 0


async def test_a_stop_string_ends_its_stream_at_once_and_no_other() -> None:
    plain = Rig(count=2, max_tokens=40)
    await plain.started()
    await plain.finish()
    stop = next(text for text in plain.texts[0][8:] if text not in plain.texts[1])
    rig = Rig(count=2, max_tokens=40, stops=(stop,))
    await rig.started()
    while rig.choices[0].finish_reason is None:
        rig.engine.step()
        rig.take(await rig.generation.more(within=10))
    rig.engine.step()
    assert rig.engine.active_streams == 1, "its stream goes on behind the answer's back"
    await rig.finish()
    assert rig.texts == [plain.texts[0].partition(stop)[0], plain.texts[1]]
    assert rig.choices[0].tokens == plain.texts[0].index(stop) + 1


async def test_closing_ends_the_streams() -> None:
    rig = Rig(count=2, max_tokens=100)
    await rig.started()
    assert rig.engine.active_streams == 2
    rig.generation.close()
    rig.generation.close()
    rig.engine.step()
    assert rig.engine.active_streams == 0


async def test_a_stream_that_is_refused_fails_the_call() -> None:
    rig = Rig(count=3)  # there are two places, and no line to wait in
    task = asyncio.create_task(rig.generation.start())
    await asyncio.sleep(0)
    rig.engine.step()
    with pytest.raises(GenerationError) as caught:
        await asyncio.wait_for(task, 10)
    assert (caught.value.problem.status, caught.value.problem.code) == (429, "rate_limit_exceeded")
    assert caught.value.problem.retry_after == 1.0
    rig.generation.close()
    rig.engine.step()
    assert rig.engine.active_streams == 0


async def test_text_that_came_before_a_failure_is_handed_out_before_it() -> None:
    rig = Rig(max_tokens=100)
    await rig.started()
    rig.engine.step()
    rig.engine.stop()
    with pytest.raises(GenerationError) as caught:
        await rig.finish()
    assert caught.value.problem.status == 503
    assert len(rig.texts[0]) == rig.choices[0].tokens == 2


async def test_waiting_ends_with_nothing_after_its_time() -> None:
    rig = Rig()
    await rig.started()
    await rig.generation.more(within=10)
    assert await rig.generation.more(within=0.001) == []


async def test_one_wake_up_serves_what_comes_before_the_loops_turn() -> None:
    rig = Rig()
    loop, woken = asyncio.get_running_loop(), []
    rig.generation._loop = type("Loop", (), {"call_soon_threadsafe": lambda _, action: woken.append(action)})()
    for _ in range(3):
        rig.generation.deliver([Opened(stream=1)])
    assert len(woken) == 1
    rig.generation._loop = loop
    woken[0]()
    assert await rig.generation.more(within=10) == []
    rig.generation.deliver([Commit(stream=1, path=0, accepted=0, token=7)])
    (delta,) = await rig.generation.more(within=10)
    assert delta.text == "g"


def allowance_of(tenant: Tenant, *, requests_per_minute: float) -> Allowance:
    return Allowance(
        tenant=lambda: tenant,
        rules=lambda: KeyRules(requests_per_minute=requests_per_minute),
        buckets=Buckets(most=9, clock=lambda: 0.0),
        name=tenant.name,
        refused=lambda _: None,
    )


async def test_a_call_that_is_refused_costs_no_requests() -> None:
    visitor = Visitor(allowance=allowance_of(Tenant(name="acme"), requests_per_minute=3))
    with pytest.raises(InvalidParameterError, match="n: asks for 4 answers"):  # which never would be allowed
        await Rig(count=4, visitor=visitor).generation.start()
    await Rig(count=2, visitor=visitor).started()
    with pytest.raises(BusyError):
        await Rig(count=2, visitor=visitor).generation.start()
    await Rig(visitor=visitor).started()


async def test_the_visitors_allowance_is_asked_for_each_stream() -> None:
    tenant = Tenant(name="acme")
    allowance = allowance_of(tenant, requests_per_minute=2)
    rig = Rig(count=2, visitor=Visitor(allowance=allowance))
    assert rig.generation.tenant is tenant
    await rig.started()
    again = Rig(visitor=Visitor(allowance=allowance))
    with pytest.raises(BusyError) as caught:
        await again.generation.start()
    assert caught.value.code is ErrorCode.BUSY
    again.engine.step()
    assert again.engine.active_streams == 0
