"""The API without a socket: whatever is asked, there is an answer or a refusal that names the field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.http import Call, Visitor
from draftwire.protocol.messages import Limits
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from .openai_rig import LIMITS, Caller, calling, content, endless
from .test_fields import ANY_JSON

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


async def test_defaults_are_openais() -> None:
    async with calling() as caller:
        answer = await caller.complete(prompt="ab")
        assert answer["usage"]["completion_tokens"] == 16
        assert answer["model"] == "table-40-3"
        chat = await caller.chat(messages=HI)
        assert chat["usage"]["completion_tokens"] == 512


async def test_default_lengths_end_with_the_context() -> None:
    limits = Limits(max_context=20, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
    async with calling(limits=limits) as caller:
        assert (await caller.complete(prompt="a" * 15))["usage"]["completion_tokens"] == 5
        assert (await caller.chat(messages=HI))["usage"]["total_tokens"] == 20
        for path, field in ((COMPLETIONS, {"prompt": "a" * 20}), (CHAT, {"messages": [HI[0] | {"content": "a" * 20}]})):
            error = await caller.refused(path, field)
            assert (error["code"], error["param"]) == ("context_length_exceeded", next(iter(field)))
            assert "context of 20" in error["message"]


async def test_the_seed_is_told_and_brings_the_same_choices_back() -> None:
    async with calling() as caller:
        drawn = await caller.complete(prompt="ab", n=2)
        again = await caller.complete(prompt="ab", n=2, seed=drawn["draftwire"]["seed"])
        assert drawn["choices"] == again["choices"]
        first, second = (choice["text"] for choice in drawn["choices"])
        assert first != second
        next_seed = await caller.complete(prompt="ab", seed=drawn["draftwire"]["seed"] + 1)
        assert next_seed["choices"][0]["text"] == second


async def test_each_prompt_is_answered_as_if_alone() -> None:
    async with calling() as caller:
        together = await caller.complete(prompt=["ab", [3, 4]], n=2, seed=5)
        alone = [await caller.complete(prompt=prompt, n=2, seed=5) for prompt in ("ab", "cd")]
        texts = [choice["text"] for answer in alone for choice in answer["choices"]]
        assert [choice["text"] for choice in together["choices"]] == texts
        assert [choice["index"] for choice in together["choices"]] == [0, 1, 2, 3]
        assert together["usage"]["prompt_tokens"] == 4


@pytest.mark.parametrize("count", range(1, 11))
async def test_just_as_many_tokens_as_were_asked_for(count: int) -> None:
    async with calling() as caller:
        answer = await caller.complete(prompt="ab", max_tokens=count)
        assert answer["usage"]["completion_tokens"] == count
        assert len(answer["choices"][0]["text"]) == count
        assert answer["choices"][0]["finish_reason"] == "length"
        for name in ("max_tokens", "max_completion_tokens"):
            assert (await caller.chat(messages=HI, **{name: count}))["usage"]["completion_tokens"] == count


async def test_an_end_of_sequence_ends_an_answer_unless_it_is_ignored() -> None:
    async with calling(endless(eos_bias=3.0)) as caller:
        answer = await caller.complete(prompt="ab", max_tokens=200, seed=1)
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == len(answer["choices"][0]["text"]) + 1
        ignoring = await caller.complete(prompt="ab", max_tokens=200, seed=1, ignore_eos=True)
        assert ignoring["usage"]["completion_tokens"] == 200
        assert ignoring["choices"][0]["finish_reason"] == "length"


async def test_a_prompt_seen_before_is_counted_as_cached() -> None:
    async with calling() as caller:
        prompt = [1 + index % 30 for index in range(200)]
        first = await caller.complete(prompt=prompt, max_tokens=1)
        second = await caller.complete(prompt=prompt, max_tokens=1)
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in (first, second)]
        assert cached[0] == 0
        assert 0 < cached[1] < 200


async def test_large_requests_are_read_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threaded: list[Any] = []
    to_thread = asyncio.to_thread

    async def counting(function: Any, *arguments: Any) -> Any:
        threaded.append(function)
        return await to_thread(function, *arguments)

    async with calling() as caller:
        monkeypatch.setattr(asyncio, "to_thread", counting)
        await caller.complete(prompt="ab")
        assert threaded == []
        await caller.refused(COMPLETIONS, {"prompt": "ab " * 5000})
        assert len(threaded) == 1
        monkeypatch.undo()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 2**31),
        ("echo", True),
        ("suffix", "x"),
        ("best_of", 3),
        ("logprobs", 0),
        ("logprobs", 5),
        ("logit_bias", {"40": 1}),
        ("n", 33),
        ("temperature", -1),
        ("prompt", None),
        ("prompt", ["a"] * 33),
        ("messages", HI),
        ("guided_json", {}),
    ],
)
async def test_completions_refuse_by_name(field: str, value: Any) -> None:
    async with calling() as caller:
        error = await caller.refused(COMPLETIONS, {"prompt": "ab", field: value})
        assert (error["type"], error["param"]) == ("invalid_request_error", field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0),
        ("max_completion_tokens", -1),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("functions", [{}]),
        ("function_call", {"name": "x"}),
        ("logprobs", True),
        ("top_logprobs", 5),
        ("response_format", {"type": "json_object"}),
        ("modalities", ["text", "audio"]),
        ("audio", {}),
        ("reasoning_effort", "high"),
        ("verbosity", "low"),
        ("web_search_options", {}),
        ("n", 33),
        ("prompt", "ab"),
        ("messages", "hi"),
    ],
)
async def test_chat_refuses_by_name(field: str, value: Any) -> None:
    async with calling() as caller:
        error = await caller.refused(CHAT, {"messages": HI, field: value})
        assert (error["type"], error["param"]) == ("invalid_request_error", field)


async def test_what_asks_for_nothing_is_taken() -> None:
    async with calling() as caller:
        await caller.complete(prompt="ab", echo=False, suffix=None, best_of=2, n=2, logprobs=None, user="me")
        await caller.chat(
            messages=HI,
            max_tokens=2,
            max_completion_tokens=2,
            tools=[],
            tool_choice="auto",
            logprobs=False,
            response_format={"type": "text"},
            modalities=["text"],
            parallel_tool_calls=True,
        )
        error = await caller.refused(CHAT, {"messages": HI, "max_tokens": 2, "max_completion_tokens": 3})
        assert error["param"] == "max_tokens"


async def test_another_model_is_not_found() -> None:
    async with calling() as caller:
        await caller.complete(prompt="ab", model="table-40-3")
        error = await caller.refused(COMPLETIONS, {"prompt": "ab", "model": "other"}, status=404)
        assert (error["param"], error["code"]) == ("model", "model_not_found")
        assert "table-40-3 is" in error["message"]


async def test_models_are_found_by_name() -> None:
    async with calling() as caller:
        route = caller._routes["/v1/models/{id:.+}"]
        for name, status in (("table-40-3", 200), ("an/other", 404)):
            call = Call(method="GET", path=f"/v1/models/{name}", headers={}, body=b"", visitor=Visitor())
            body = content(await route.handler(call), status)
            assert body.get("id", body.get("error", {}).get("code")) == (name if status == 200 else "model_not_found")


async def test_more_choices_than_there_is_room_for_are_busy() -> None:
    async with calling() as caller:
        error = await caller.refused(COMPLETIONS, {"prompt": "ab", "n": 9, "max_tokens": 500}, status=429)
        assert error["code"] == "rate_limit_exceeded"


async def test_a_verifier_that_leaves_says_so() -> None:
    async with calling() as caller:
        caller.engine.drain()
        error = await caller.refused(COMPLETIONS, {"prompt": "ab"}, status=503)
        assert error["code"] == "shutting_down"


@pytest.mark.parametrize("refused", [False, True])
async def test_a_call_that_is_cancelled_or_refused_ends_its_streams(refused: bool) -> None:
    endless_limits = replace(LIMITS, max_context=10**6)
    async with calling(endless(max_context=10**6), limits=endless_limits) as caller:
        body = {"prompt": "ab", "max_tokens": 900_000, "n": 9 if refused else 4}
        call = asyncio.create_task(caller.post(COMPLETIONS, body))
        if refused:  # there are eight places
            assert (await call).status == 429
        else:
            while not caller.engine.active_streams:
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
        await caller.idle()


async def test_what_nobody_else_sees_is_counted_once_and_what_the_engine_refuses_is_its_own_to_count() -> None:
    counted: list[str] = []
    async with calling(visitor=Visitor(refused=counted.append)) as caller:
        for fields, status, reasons in (
            ({"prompt": "ab", "temperature": -1}, 400, ["invalid_parameter"]),
            ({"prompt": ""}, 400, ["invalid_parameter"]),
            ({"prompt": "ab", "model": "other"}, 404, ["model_not_found"]),
            ({"prompt": "ab", "max_tokens": 10_000}, 400, []),
            ({"prompt": "ab", "n": 9, "max_tokens": 500}, 429, []),
            ({"prompt": "ab", "max_tokens": 1}, 200, []),
        ):
            counted.clear()
            content(await caller.post(COMPLETIONS, fields), status)
            assert counted == reasons


KNOWN = st.sampled_from(
    ["prompt", "messages", "model", "n", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "top_k"]
) | st.sampled_from(
    ["logit_bias", "max_tokens", "max_completion_tokens", "logprobs", "tools", "response_format", "ignore_eos", "user"]
)
SENSIBLE = st.sampled_from(["ab", [1, 2], ["a", "b"], HI, 1, 2, 0.5, True, False, None, {"5": 1}, "table-40-3"])


@pytest.fixture(scope="module")
def shared() -> Iterator[Caller]:
    """One engine for all examples."""
    target = endless()
    engine = Engine(target, limits=LIMITS)
    engine.start()
    yield Caller(engine, OpenAiApi(engine, target, LIMITS))
    engine.stop()


async def post(caller: Caller, path: str, body: bytes) -> int:
    """Call, and check the form of what comes back. Returns the status."""
    reply = await caller.post(path, body)
    if not isinstance(reply.body, bytes):
        assert reply.content_type.startswith("text/event-stream")
        assert [piece async for piece in reply.body][-1] == b"data: [DONE]\n\n"
    else:
        answer = json.loads(reply.body)
        assert answer["choices"] if reply.status == 200 else set(answer) == {"error"}
    return reply.status


@settings(max_examples=150, deadline=None)
@given(path=st.sampled_from([COMPLETIONS, CHAT]), changes=st.dictionaries(KNOWN, SENSIBLE | ANY_JSON, max_size=4))
def test_any_json_is_answered_or_refused(shared: Caller, path: str, changes: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"prompt": "ab"} if path == COMPLETIONS else {"messages": HI, "max_tokens": 5}
    status = asyncio.run(post(shared, path, json.dumps(asked | changes).encode()))
    assert status in (200, 400, 404)
    event(str(status))


@given(path=st.sampled_from([COMPLETIONS, CHAT]), body=st.binary(max_size=40))
@example(path=CHAT, body=b"[" * 100_000)
@example(path=CHAT, body=b'{"messages": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(path=COMPLETIONS, body=b'{"seed": ' + b"9" * 10_000 + b"}")
@example(path=COMPLETIONS, body=b'{"prompt": "a", "temperature": NaN}')
@example(path=COMPLETIONS, body=b'{"prompt": "\\ud800"}')
@example(path=COMPLETIONS, body=b'{"prompt": "a", "model": "\\ud800"}')
@settings(deadline=None)
def test_any_bytes_are_refused(shared: Caller, path: str, body: bytes) -> None:
    assert asyncio.run(post(shared, path, body)) in (400, 404)
