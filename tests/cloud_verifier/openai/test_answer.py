"""Answers in OpenAI's form; a stream's silence, and its end before its beginning."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.openai.answer import Answer, EventStream, whole_reply
from draftwire.cloud_verifier.openai.choice import Choice
from draftwire.cloud_verifier.openai.endpoint import ChatCompletions, Completions, Endpoint
from draftwire.cloud_verifier.openai.generation import Generation
from draftwire.cloud_verifier.openai.vocabulary import Vocabulary
from draftwire.cloud_verifier.service.http import Visitor
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import Commit, End, EndReason, Error, Message, Open, Opened
from draftwire.protocol.sampling import SamplingParams

from .openai_rig import LIMITS, content, endless, events_of

PROMPT = (1, 2)


class Rig:
    """An answer whose streams say what the test lets them say; the engine, whose thread does not run, hears of all."""

    def __init__(self, endpoint: Endpoint, *, prompts: int = 1, samples: int = 1, include_usage: bool = False) -> None:
        target = endless()
        self.engine = Engine(target, limits=LIMITS)
        count = prompts * samples
        fields: dict[str, Any] = {"token_ids": PROMPT, "prompt_length": 2, "params": SamplingParams(), "seed": 0}
        requests = [Open(stream=index + 1, max_tokens=9, **fields) for index in range(count)]
        vocabulary = Vocabulary(target)
        choices = [Choice(index=index, decoder=vocabulary, prompt_ids=PROMPT) for index in range(count)]
        self.generation = Generation(self.engine, Visitor(), requests, choices)
        self.answer = Answer(
            endpoint=endpoint,
            model="m",
            seed=7,
            prompts=[2] * prompts,
            choices=choices,
            include_usage=include_usage,
            id="x",
            created=5,
        )

    def say(self, *messages: Message) -> None:
        self.generation.deliver(messages)

    def tokens(self, stream: int, *tokens: int) -> None:
        self.say(*(Commit(stream=stream, path=0, accepted=0, token=token) for token in tokens))

    def end(self, stream: int, reason: EndReason = EndReason.LENGTH) -> None:
        self.say(End(stream=stream, reason=reason))

    async def events(self) -> list[Any]:
        return events_of([piece async for piece in EventStream(self.answer, self.generation)])


ENVELOPE = {"id": "cmpl-x", "created": 5, "model": "m", "draftwire": {"seed": 7}}
CHAT_ENVELOPE = {**ENVELOPE, "id": "chatcmpl-x"}


async def test_a_whole_completion() -> None:
    rig = Rig(Completions(), prompts=2, samples=2)
    for stream, cached in enumerate([1, 2, 0, 2], 1):
        rig.say(Opened(stream=stream, cached=cached))
        rig.tokens(stream, 3, stream)
        rig.end(stream, EndReason.STOP if stream == 2 else EndReason.LENGTH)
    assert content(await whole_reply(rig.answer, rig.generation), 200) == {
        **ENVELOPE,
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": "ca", "logprobs": None, "finish_reason": "length"},
            {"index": 1, "text": "cb", "logprobs": None, "finish_reason": "stop"},
            {"index": 2, "text": "cc", "logprobs": None, "finish_reason": "length"},
            {"index": 3, "text": "cd", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": {
            "prompt_tokens": 4,
            "completion_tokens": 8,
            "total_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": 1},
        },
    }


async def test_a_whole_chat_completion() -> None:
    rig = Rig(ChatCompletions())
    rig.tokens(1, 3, 4)
    rig.end(1)
    answer = content(await whole_reply(rig.answer, rig.generation), 200)
    message = {"role": "assistant", "content": "cd", "refusal": None}
    assert answer.pop("usage")["total_tokens"] == 4
    assert answer == {
        **CHAT_ENVELOPE,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}],
    }


async def test_a_streamed_completion() -> None:
    rig = Rig(Completions())
    rig.tokens(1, 3)
    rig.tokens(1, 4)
    rig.end(1, EndReason.STOP)
    chunk = {**ENVELOPE, "object": "text_completion"}
    assert await rig.events() == [
        {**chunk, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]}
        for text, reason in [("c", None), ("d", None), ("", "stop")]
    ] + ["[DONE]"]


async def test_a_streamed_chat_completion_with_usage() -> None:
    rig = Rig(ChatCompletions(), samples=2, include_usage=True)
    rig.tokens(2, 3)
    rig.tokens(1, 4)
    rig.end(1)
    rig.end(2, EndReason.STOP)
    chunk = {**CHAT_ENVELOPE, "object": "chat.completion.chunk", "usage": None}
    *chunks, last, done = await rig.events()
    deltas: list[tuple[int, dict[str, str], str | None]] = [
        (0, {"role": "assistant", "content": ""}, None),
        (1, {"role": "assistant", "content": ""}, None),
        (1, {"content": "c"}, None),
        (0, {"content": "d"}, None),
        (0, {}, "length"),
        (1, {}, "stop"),
    ]
    assert chunks == [
        {**chunk, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]}
        for index, delta, reason in deltas
    ]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 2,
        "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    assert done == "[DONE]"


async def test_a_failure_in_mid_stream_is_the_streams_last_event() -> None:
    rig = Rig(Completions())
    rig.tokens(1, 3)
    rig.say(Error(stream=1, code=ErrorCode.INTERNAL, message="the target failed on this stream"))
    text, failure = await rig.events()
    assert text["choices"][0]["text"] == "c"
    message = "the target failed on this stream"
    assert failure == {"error": {"message": message, "type": "server_error", "param": None, "code": None}}


async def test_silence_is_broken_by_comments() -> None:
    rig = Rig(Completions())
    stream = EventStream(rig.answer, rig.generation, keep_alive=0.001)
    for _ in range(3):
        assert await anext(stream) == b": still at work\n\n"
    rig.tokens(1, 3)
    rig.end(1)
    pieces = [piece async for piece in stream]
    assert events_of(pieces)[-1] == "[DONE]"


async def test_tokens_without_text_make_no_event() -> None:
    rig = Rig(ChatCompletions())
    stream = EventStream(rig.answer, rig.generation)
    (opening,) = events_of([await anext(stream)])
    assert opening["choices"][0]["delta"]["role"] == "assistant"
    rig.tokens(1, 0)  # <eos>, which is special
    following = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    while rig.answer.choices[0].tokens == 0:
        await asyncio.sleep(0)
    rig.end(1, EndReason.STOP)
    pieces = [await following, *[piece async for piece in stream]]
    assert all(pieces), "an empty piece is nothing to send"
    end, done = events_of(pieces)
    assert end["choices"][0]["finish_reason"] == "stop"
    assert done == "[DONE]"


@pytest.mark.parametrize("begun", [False, True])
async def test_closing_a_stream_ends_its_streams_also_where_nobody_read_it(begun: bool) -> None:
    rig = Rig(ChatCompletions())
    request = Open(
        stream=1, token_ids=PROMPT, prompt_length=2, params=SamplingParams(), max_tokens=500, seed=0, stop_ids=()
    )
    rig.engine.open(rig.generation, request)
    rig.engine.step()
    assert rig.engine.active_streams == 1
    stream = EventStream(rig.answer, rig.generation)
    if begun:
        await anext(stream)
    await stream.aclose()
    rig.engine.step()
    assert rig.engine.active_streams == 0
