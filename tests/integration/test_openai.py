"""OpenAI's own client library against a real verifier on a real socket."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import torch
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service import sending
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.http import Refusal, Route, Visitor
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Target
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.edge_client import AsyncEdgeClient
from draftwire.protocol.messages import Limits

from ..grace import GRACE, wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import HeldTarget
from .verifier_process import make_tiny_model
from .verifier_process import serving as served_program

TEMPLATE = "{% for message in messages %}{{ message['role'][0] }} {{ message['content'] }} {% endfor %}a "
HI: Any = [{"role": "user", "content": "hi"}]
KEY = "sk-right"
PROMPT = "why is it so"


class OneKey(Doorkeeper):
    """Lets in whoever shows the key."""

    def admit(self, headers: Mapping[str, str], **about: Any) -> Visitor:
        """See :class:`Doorkeeper`."""
        if headers.get("authorization") != f"Bearer {KEY}":
            raise Refusal(401, "the API key is not valid; check it")
        return super().admit(headers, **about)


def letters(kind: type[TableTarget] = TableTarget, **options: Any) -> Any:
    """A target with letters and a chat template, whose text never ends by itself."""
    target = kind(**{"vocabulary_size": 64, "seed": 5, "eos_bias": -1e4, **options})
    target.chat_template = TEMPLATE
    return target


def api_routes(engine: Engine, target: Target, limits: Limits) -> Sequence[Route]:
    return OpenAiApi(engine, target, limits).routes()


@asynccontextmanager
async def serving(target: Any, **options: Any) -> AsyncIterator[tuple[RunningVerifier, openai.AsyncOpenAI]]:
    """A verifier, and OpenAI's client for it."""
    async with (
        running_verifier(target, routes=api_routes, **options) as verifier,
        openai.AsyncOpenAI(base_url=url_of(verifier), api_key=KEY, max_retries=0, timeout=GRACE) as client,
    ):
        yield verifier, client


def url_of(verifier: RunningVerifier) -> str:
    return f"http://127.0.0.1:{verifier.port}/v1"


async def idle(engine: Engine) -> None:
    """Until no stream is open."""
    async with asyncio.timeout(GRACE):
        while engine.active_streams:
            await asyncio.sleep(0.001)


async def read_out(stream: openai.AsyncStream[Any]) -> int:
    """Read a stream to its end; returns the number of chunks."""
    return len([chunk async for chunk in stream])


async def leave(stream: openai.AsyncStream[Any]) -> None:
    """Close a stream early, and run the library's iterators to their end.

    Closing alone leaves them to the garbage collector, which may run in the engine's thread while the event loop is
    ending them already: "async generator already executing".
    """
    await stream.close()
    with pytest.raises(openai.APIConnectionError):
        await wait_for(read_out(stream))  # what the library had read already, then that it is closed


async def plain_text(verifier: RunningVerifier, prompt: Any, count: int, **options: Any) -> str:
    """What a device without a draft gets for the same prompt and seed."""
    async with AsyncEdgeClient(verifier.url) as client, client.stream(prompt, max_tokens=count, **options) as stream:
        return (await wait_for(stream.get_final_result())).text


# --- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 11}], ids=str)
async def test_the_text_is_what_a_device_without_a_draft_gets(sampling: dict[str, Any]) -> None:
    async with serving(letters()) as (verifier, client):
        completion = await client.completions.create(model="table-64-5", prompt=PROMPT, max_tokens=50, **sampling)
        assert completion.choices[0].text == await plain_text(verifier, PROMPT, 50, **sampling)
        assert completion.choices[0].finish_reason == "length"
        chat = await client.chat.completions.create(model="table-64-5", messages=HI, max_tokens=50, **sampling)
        assert chat.choices[0].message.content == await plain_text(verifier, HI, 50, **sampling)
        assert chat.choices[0].message.role == "assistant"


async def test_usage_is_counted() -> None:
    async with serving(letters()) as (_, client):
        completion = await client.completions.create(model="table-64-5", prompt=[PROMPT, "no"], n=2, max_tokens=7)
        usage = completion.usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (14, 28, 42)
        assert usage.prompt_tokens_details is not None
        assert usage.prompt_tokens_details.cached_tokens == 0
        assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]


async def test_streams_join_to_the_whole_answer() -> None:
    async with serving(letters()) as (_, client):
        options: Any = {"model": "table-64-5", "seed": 3, "n": 2, "max_tokens": 40}
        whole = await client.completions.create(prompt=PROMPT, **options)
        texts, reasons, usage = ["", ""], [None, None], None
        streamed = {**options, "stream": True, "stream_options": {"include_usage": True}}
        async for chunk in await client.completions.create(prompt=PROMPT, **streamed):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
        assert texts == [choice.text for choice in whole.choices]
        assert reasons == ["length", "length"]
        assert usage == whole.usage


async def test_chat_streams_begin_with_the_role_and_end_with_the_reason() -> None:
    async with serving(letters()) as (verifier, client):
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model="table-64-5", messages=HI, temperature=0, max_tokens=20, stream=True
            )
        ]
        first, *middle, last = [chunk.choices[0] for chunk in chunks]
        assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
        assert "".join(choice.delta.content or "" for choice in middle) == await plain_text(verifier, HI, 20)
        assert (last.delta.content, last.finish_reason) == (None, "length")
        assert {chunk.id for chunk in chunks} == {chunks[0].id}
        assert all(chunk.usage is None for chunk in chunks)


async def test_the_client_without_asyncio() -> None:
    async with serving(letters()) as (verifier, _):

        def ask() -> tuple[str, str]:
            with openai.OpenAI(base_url=url_of(verifier), api_key=KEY, max_retries=0, timeout=GRACE) as client:
                whole = client.chat.completions.create(model="table-64-5", messages=HI, seed=1, max_completion_tokens=9)
                stream = client.chat.completions.create(
                    model="table-64-5", messages=HI, seed=1, max_completion_tokens=9, stream=True
                )
                return whole.choices[0].message.content or "", "".join(c.choices[0].delta.content or "" for c in stream)

        whole, streamed = await asyncio.to_thread(ask)
        assert len(whole) == 9
        assert streamed == whole


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_text_usage_and_stream_together(stream: bool) -> None:
    target = letters(HeldTarget)
    async with serving(target) as (verifier, client):
        target.let_go()
        text = await plain_text(verifier, PROMPT, 60)
        stop = text[20:24]
        at = text.index(stop)
        options: Any = {"model": "table-64-5", "prompt": PROMPT, "temperature": 0, "max_tokens": 4000, "stop": [stop]}
        if stream:
            options["stream_options"] = {"include_usage": True}
            answers = [chunk async for chunk in await client.completions.create(stream=True, **options)]
        else:
            answers = [await client.completions.create(**options)]
        choices = [answer.choices[0] for answer in answers if answer.choices]
        assert "".join(choice.text for choice in choices) == text[:at]
        assert choices[-1].finish_reason == "stop"
        assert answers[-1].usage.completion_tokens == at + len(stop)
        await idle(verifier.engine)


async def test_extra_parameters_arrive() -> None:
    async with serving(letters(eos_bias=3.0)) as (verifier, client):
        extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.3, "ignore_eos": True}
        completion = await client.completions.create(
            model="table-64-5", prompt=PROMPT, max_tokens=60, seed=2, logit_bias={"7": 4}, extra_body=extra
        )
        options = {"temperature": 1.0, "seed": 2, "logit_bias": {7: 4}, **extra}
        assert completion.choices[0].text == await plain_text(verifier, PROMPT, 60, **options)
        assert completion.model_extra == {"draftwire": {"seed": 2}}


async def test_the_models_are_listed_and_found() -> None:
    async with serving(letters()) as (_, client):
        listed = (await client.models.list()).data
        assert [model.id for model in listed] == ["table-64-5"]
        assert listed[0].created > 0
        assert await client.models.retrieve("table-64-5") == listed[0]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.models.retrieve("some/other")
        assert caught.value.code == "model_not_found"


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "param", "code"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature", None),
        ({"top_p": 2}, openai.BadRequestError, "top_p", None),
        ({"frequency_penalty": 5}, openai.BadRequestError, "frequency_penalty", None),
        ({"extra_body": {"repetition_penalty": 0}}, openai.BadRequestError, "repetition_penalty", None),
        ({"logprobs": 3}, openai.BadRequestError, "logprobs", None),
        ({"max_tokens": 5000}, openai.BadRequestError, "prompt", "context_length_exceeded"),
        ({"model": "gpt-4"}, openai.NotFoundError, "model", "model_not_found"),
        ({"prompt": "a" * 600_000}, openai.APIStatusError, None, "request_too_large"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
async def test_errors_are_the_librarys_own(
    options: dict[str, Any], kind: type[openai.APIStatusError], param: str | None, code: str | None
) -> None:
    async with serving(letters()) as (_, client):
        with pytest.raises(kind) as caught:
            await client.completions.create(**{"model": "table-64-5", "prompt": PROMPT, **options})
        assert (caught.value.param, caught.value.code) == (param, code)
        assert caught.value.type == "invalid_request_error"


async def test_a_full_verifier_says_when_to_come_again() -> None:
    target = letters(HeldTarget)
    async with serving(target, max_streams=1) as (_, client):
        create = client.completions.create
        first = asyncio.create_task(create(model="table-64-5", prompt=PROMPT, max_tokens=5))
        await target.until(lambda: target.entered == 1)
        second = asyncio.create_task(create(model="table-64-5", prompt=PROMPT))
        while not second.done():
            target.allow(1)
            await asyncio.sleep(0.01)
        with pytest.raises(openai.RateLimitError) as caught:
            await second
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        target.let_go()
        assert (await wait_for(first)).choices[0].finish_reason == "length"


async def test_a_wrong_key_is_refused_in_their_form() -> None:
    async with serving(letters(), doorkeeper=OneKey()) as (verifier, client):
        await client.completions.create(model="table-64-5", prompt=PROMPT)
        async with openai.AsyncOpenAI(base_url=url_of(verifier), api_key="sk-wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as caught:
                await stranger.completions.create(model="table-64-5", prompt=PROMPT)
        assert caught.value.code == "invalid_api_key"


async def test_a_failure_in_mid_stream_is_raised_by_the_library() -> None:
    target = letters(HeldTarget)
    async with serving(target) as (verifier, client):
        target.allow(2)
        stream = await client.completions.create(model="table-64-5", prompt=PROMPT, max_tokens=100, stream=True)
        assert (await wait_for(anext(stream))).choices[0].text
        stopping = asyncio.create_task(asyncio.to_thread(verifier.engine.stop))
        async with asyncio.timeout(GRACE):
            while not verifier.engine.draining:  # or the answer could come to its end before the thread has begun
                await asyncio.sleep(0.001)
        target.let_go()
        with pytest.raises(openai.APIError, match="shutting down"):
            await wait_for(read_out(stream))
        await stopping


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 50_000, b'{"prompt": "a", "temperature": NaN}'])
async def test_what_is_no_request_is_refused(body: bytes) -> None:
    async with (
        serving(letters()) as (verifier, _),
        aiohttp.ClientSession() as session,
        session.post(f"{url_of(verifier)}/completions", data=body) as reply,
    ):
        error = (await reply.json())["error"]
        assert (reply.status, error["type"]) == (400, "invalid_request_error")
        assert error["param"] == ("temperature" if b"NaN" in body else "body")
        assert reply.headers["X-Request-Id"]


# --- leaving --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_takes_its_streams_with_it(stream: bool) -> None:
    target = letters(HeldTarget)
    async with serving(target) as (verifier, client):
        options: Any = {"model": "table-64-5", "messages": HI, "n": 3, "max_tokens": 4000}
        if stream:
            target.allow(3)
            answer = await client.chat.completions.create(stream=True, **options)
            await wait_for(anext(answer))
            assert verifier.engine.active_streams == 3
            await leave(answer)
        else:
            call = asyncio.create_task(client.chat.completions.create(**options))
            await target.step_until(lambda: target.steps >= 3)
            assert verifier.engine.active_streams == 3
            call.cancel()
            await asyncio.wait([call])
        while verifier.engine.active_streams:  # whatever it takes for the socket's end to be seen
            target.allow(1)
            await asyncio.sleep(0.01)
        assert target.steps < 4000
        assert verifier.target.kv_bytes < 4000


async def test_a_reader_that_stalls_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sending, "WRITE_SECONDS", 0.2)
    caplog.set_level(logging.INFO, logger=sending.__name__)
    body = json.dumps({"prompt": PROMPT, "n": 8, "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
    async with serving(letters()) as (verifier, _):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", verifier.port))
            client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            async with asyncio.timeout(GRACE):
                while "does not read" not in caplog.text:
                    await asyncio.sleep(0.01)
            await idle(verifier.engine)
            received = await asyncio.to_thread(read_to_the_end, client)
    assert received.startswith(b"HTTP/1.1 200")
    assert b"[DONE]" not in received


def read_to_the_end(client: socket.socket) -> bytes:
    received = b""
    try:
        while piece := client.recv(65536):
            received += piece
    except ConnectionResetError:
        pass
    return received


async def test_many_clients_that_leave_leave_nothing() -> None:
    async with serving(letters()) as (verifier, client):
        options: Any = {"model": "table-64-5", "messages": HI, "max_tokens": 3000, "stream": True}
        for _ in range(40):
            stream = await client.chat.completions.create(**options)
            await wait_for(anext(stream))
            await leave(stream)
        await idle(verifier.engine)


# --- as a program ---------------------------------------------------------------------------------------------------


async def test_the_program_serves_it_and_lets_a_stream_finish_after_sigterm(tmp_path: Path) -> None:
    with served_program(str(make_tiny_model(tmp_path)), "--threads", "1") as (process, url):
        async with openai.AsyncOpenAI(
            base_url=f"{url.replace('ws', 'http', 1)}/v1", api_key=KEY, max_retries=0, timeout=GRACE
        ) as client:
            (model,) = (await client.models.list()).data
            with pytest.raises(openai.BadRequestError, match="no chat template; use /v1/completions"):
                await client.chat.completions.create(model=model.id, messages=HI)
            stream = await client.completions.create(
                model=model.id,
                prompt="w5 w6",
                max_tokens=1500,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            await wait_for(anext(stream))
            process.send_signal(signal.SIGTERM)
            refused: openai.APIStatusError | None = None
            while refused is None:  # the signal takes effect between two tokens
                try:
                    await client.completions.create(model=model.id, prompt="w5", max_tokens=1)
                except openai.APIStatusError as error:
                    refused = error
            assert (refused.status_code, refused.code) == (503, "shutting_down")
            last = [chunk async for chunk in stream][-1]
            assert last.usage is not None
            assert last.usage.completion_tokens == 1500
        assert await asyncio.to_thread(process.wait, GRACE) == 0


# --- the demo pair --------------------------------------------------------------------------------------------------


@pytest.mark.demo
async def test_the_demo_model_answers_as_it_does_on_a_device(demo_target_folder: Path) -> None:
    torch.set_num_threads(1)
    target = TransformersTarget.load(str(demo_target_folder), dtype="float32")
    question: Any = [{"role": "user", "content": "List three emoji and write 你好."}]
    async with serving(target, max_context=2048) as (verifier, client):
        name = (await client.models.list()).data[0].id
        expected = await plain_text(verifier, question, 24)
        stream = await client.chat.completions.create(
            model=name, messages=question, temperature=0, max_tokens=24, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == expected
        assert "�" not in "".join(pieces[:-2])
        completion = await client.completions.create(
            model=name, prompt="The capital of France is", temperature=0, max_tokens=8
        )
        assert completion.choices[0].text == await plain_text(verifier, "The capital of France is", 8)
        assert json.loads(completion.to_json())["draftwire"]["seed"] >= 0


async def test_a_caller_of_http_1_0_sees_where_a_streamed_answer_ends() -> None:
    async with serving(letters()) as (verifier, _):
        body = json.dumps({"prompt": "ab", "max_tokens": 3, "stream": True}).encode()
        head = f"Content-Length: {len(body)}\r\nAuthorization: Bearer {KEY}\r\nConnection: keep-alive\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
        writer.write(b"POST /v1/completions HTTP/1.0\r\n" + head.encode() + body)
        assert (await wait_for(reader.read())).endswith(b"data: [DONE]\n\n")
        writer.close()
