"""What a caller can get wrong, and what can be wrong at the other end or on the disk: named errors of one line."""

from __future__ import annotations

import asyncio
import math
import socket
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from draftwire.edge_client import AsyncEdgeClient, EdgeClient, Result
from draftwire.edge_client.vocabulary_source import fetch_vocabulary
from draftwire.protocol.errors import (
    AuthenticationError,
    ConnectionLostError,
    DraftwireError,
    IllegalMessageError,
    InternalVerifierError,
    InvalidParameterError,
    MalformedFrameError,
    PromptTooLongError,
    ProtocolError,
    StreamError,
    VerifierError,
    VerifierRefusedError,
    VerifierUnreachableError,
    VersionMismatchError,
)
from draftwire.protocol.messages import Commit, Error, ErrorCode, Open, Opened
from draftwire.protocol.session import Session

from ..grace import wait_for
from .one_line import check_one_line
from .running_verifier import RunningVerifier, honest_stream
from .scripted_verifier import scripted_verifier, serving, welcome
from .table_targets import endless_table, reference_tokens

PROMPT = [1, 7, 3]


# --- the caller's own mistakes ------------------------------------------------------------------------------------

NONSENSE = [
    ("temperature", math.nan),
    ("temperature", -1),
    ("temperature", math.inf),
    ("temperature", "hot"),
    ("temperature", True),
    ("top_p", -1),
    ("top_p", 0),
    ("top_p", 2),
    ("top_p", math.nan),
    ("top_k", -1),
    ("top_k", 1.5),
    ("min_p", 1.01),
    ("repetition_penalty", 0),
    ("presence_penalty", 3),
    ("frequency_penalty", -math.inf),
    ("logit_bias", {1: 1e9}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", [1, 2]),
    ("mode", "guess"),
    ("max_tokens", 0),
    ("max_tokens", 1.0),
    ("max_tokens", 2**40),
    ("seed", -1),
    ("seed", 2**64),
    ("look_ahead", -1),
    ("look_ahead", 10**6),
    ("policy", "cheap"),
    ("num_beams", 4),
    ("sampling", None),
]


@pytest.mark.parametrize(("field", "value"), NONSENSE)
async def test_a_parameter_out_of_range_is_named(field: str, value: Any, verifier: RunningVerifier) -> None:
    async with AsyncEdgeClient(verifier.url) as client:
        with pytest.raises(InvalidParameterError) as caught:
            client.stream(PROMPT, **{field: value})
        assert caught.value.field == field
        check_one_line(caught.value)
        assert len((await client.generate(PROMPT, max_tokens=5)).token_ids) == 5
    with pytest.raises(InvalidParameterError) as caught:
        AsyncEdgeClient(verifier.url, **{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize("look_ahead", [0, 1, 64])
async def test_look_ahead_0_is_cloud_only(look_ahead: int, verifier: RunningVerifier, right_draft: Path) -> None:
    async with AsyncEdgeClient(verifier.url, draft=right_draft) as client:
        await client.wait_for_draft()
        result = await client.generate(PROMPT, max_tokens=50, look_ahead=look_ahead, policy="cost")
    assert result.token_ids == reference_tokens(verifier.target, PROMPT, 50)
    assert (result.stats.sent_tokens == result.stats.draft_steps == 0) == (look_ahead == 0)


@pytest.mark.parametrize(
    "prompt",
    [[-1], [1, 24], [2**31], [2**63], [], "", ["abc", "abd"], [1.0], [True], [None], b"abc", None, 7, [{"role": 1}]],
    ids=repr,
)
async def test_a_prompt_that_is_none(prompt: Any, verifier: RunningVerifier) -> None:
    """Ids out of range, nothing at all, several texts at once."""
    async with honest_stream(verifier), AsyncEdgeClient(verifier.url) as client:
        with pytest.raises(InvalidParameterError) as caught:
            await wait_for(client.generate(prompt, max_tokens=5))
        assert caught.value.field in ("prompt", "messages")
        check_one_line(caught.value)
        assert len((await client.generate(PROMPT, max_tokens=5)).token_ids) == 5


@pytest.mark.parametrize(("length", "options"), [(300, {}), (299, {"max_tokens": 2}), (1, {"max_tokens": 300})])
async def test_more_than_the_context_holds(length: int, options: Any, verifier: RunningVerifier) -> None:
    async with honest_stream(verifier), AsyncEdgeClient(verifier.url, retain_context=True) as client:
        with pytest.raises(PromptTooLongError, match="context of 300") as caught:
            await wait_for(client.generate([3] * length, **options))
        assert caught.value.code is ErrorCode.PROMPT_TOO_LONG
        check_one_line(caught.value)
        # To the last token that fits.
        result = await wait_for(client.generate([3] * 290, max_tokens=10))
        assert len(result.token_ids) == 10
        with pytest.raises(PromptTooLongError):
            await wait_for(client.generate([3] * 290 + list(result.token_ids), max_tokens=5))


async def test_ids_beyond_the_vocabulary_in_a_bias(verifier: RunningVerifier) -> None:
    async with honest_stream(verifier), AsyncEdgeClient(verifier.url) as client:
        with pytest.raises(DraftwireError, match=r"(?s)logit_bias.*24|24.*logit_bias") as caught:
            await wait_for(client.generate(PROMPT, max_tokens=5, logit_bias={24: 1.0}))
        check_one_line(caught.value)


@pytest.mark.parametrize(
    "url",
    ["", "ftp://host", "ws://", "ws://host:0", "ws://host:99999", "ws://u:p@host", "a b", "ws://" + "a" * 70 + ".test"],
)
def test_no_url(url: str) -> None:
    for kind in (AsyncEdgeClient, EdgeClient):
        with pytest.raises(InvalidParameterError) as caught:
            kind(url)
        assert caught.value.field == "url"
        check_one_line(caught.value)


# --- no verifier there --------------------------------------------------------------------------------------------


async def fails_with(kind: type[DraftwireError], url: str, *, match: str, **options: Any) -> None:
    async with AsyncEdgeClient(url, timeout=5.0, **options) as client:
        for attempt in (client.connect, lambda: client.generate(PROMPT, max_tokens=4)):
            with pytest.raises(kind, match=match) as caught:
                await wait_for(attempt())
            check_one_line(caught.value)


async def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        await fails_with(VerifierUnreachableError, f"ws://127.0.0.1:{free.getsockname()[1]}", match="no verifier at")


async def test_no_such_host() -> None:
    await fails_with(VerifierUnreachableError, "ws://no-such-host.invalid", match="no verifier at")


@pytest.mark.parametrize(
    ("status", "kind", "match"),
    [
        (200, VerifierRefusedError, "200"),
        (401, AuthenticationError, "API key"),
        (403, AuthenticationError, "API key"),
        (404, VerifierRefusedError, "404"),
        (500, VerifierRefusedError, "500"),
        (503, VerifierRefusedError, "503"),
    ],
)
async def test_a_plain_http_server(status: int, kind: type[DraftwireError], match: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text="no\nsuch\nthing")

    app = web.Application()
    app.router.add_get("/v1/verify", answer)
    async with serving(app) as url:
        await fails_with(kind, url, match=match, api_key="secret-key")


async def test_a_server_that_speaks_something_else() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"\x16\x03\x01 not HTTP at all\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await fails_with(
            VerifierRefusedError, f"ws://127.0.0.1:{port}", match="is not a verifier: it answers in another"
        )


async def test_a_server_that_hangs_up() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        await fails_with(
            VerifierUnreachableError, f"ws://127.0.0.1:{port}", match="closed the connection without an answer"
        )


async def nothing(_: web.WebSocketResponse, __: Session) -> None:
    """Say nothing."""


@pytest.mark.parametrize("subprotocol", [None, "chat", "draftwire.v2"])
async def test_another_subprotocol(subprotocol: str | None) -> None:
    async with scripted_verifier(nothing, subprotocol=subprotocol) as url, AsyncEdgeClient(url) as client:
        with pytest.raises((VersionMismatchError, VerifierRefusedError), match=r"draftwire\.v1|subprotocol") as caught:
            await wait_for(client.connect())
        check_one_line(caught.value)


async def test_a_verifier_that_never_answers_the_handshake() -> None:
    async with scripted_verifier(nothing) as url, AsyncEdgeClient(url, timeout=0.2) as client:
        with pytest.raises(ConnectionLostError, match="no WELCOME") as caught:
            await wait_for(client.connect())
        check_one_line(caught.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", MalformedFrameError),
        (b"\x00\x00\x00", MalformedFrameError),
        (b"\xff" * 50, MalformedFrameError),
        ("hello", MalformedFrameError),
        (b"\x08\x02", VersionMismatchError),
        (b"\x08\x01", MalformedFrameError),
        (b"\x02\x01\x00", IllegalMessageError),  # an OPEN, which is not the verifier's to send
    ],
    ids=repr,
)
async def test_garbage_instead_of_welcome(reply: bytes | str, kind: type[ProtocolError]) -> None:
    async def script(ws: web.WebSocketResponse, _: Session) -> None:
        await ws.receive()
        await (ws.send_str(reply) if isinstance(reply, str) else ws.send_bytes(reply))

    async with scripted_verifier(script) as url, AsyncEdgeClient(url) as client:
        with pytest.raises(kind) as caught:
            await wait_for(client.connect())
        check_one_line(caught.value)


async def test_the_verifier_refuses_in_words() -> None:
    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(Error(stream=0, code=ErrorCode.BUSY, message="full", retry_after_ms=2500)))

    async with scripted_verifier(script) as url, AsyncEdgeClient(url) as client:
        with pytest.raises(StreamError, match="full") as caught:
            await wait_for(client.connect())
        assert caught.value.code is ErrorCode.BUSY
        assert caught.value.retry_after == 2.5


# --- a verifier that misbehaves later -----------------------------------------------------------------------------


async def misled(url: str, **options: Any) -> tuple[BaseException, Result]:
    """What a generation fails with, and what was committed before."""
    options = {"reconnect_seconds": 0, **options}
    async with AsyncEdgeClient(url, **options) as client, client.stream(PROMPT, max_tokens=30) as stream:
        with pytest.raises(DraftwireError) as caught:
            await wait_for(stream.get_final_result())
        check_one_line(caught.value)
        return caught.value, stream.partial_result()


@pytest.mark.parametrize(
    ("lie", "kind"),
    [
        (Commit(stream=1, path=1, accepted=3, token=4), IllegalMessageError),
        (Error(stream=1, code=ErrorCode.INTERNAL, message="it broke"), InternalVerifierError),
        (Error(stream=1, code=ErrorCode.NON_FINITE_LOGITS, message="NaN"), InternalVerifierError),
        (Error(stream=0, code=ErrorCode.SHUTTING_DOWN, message="bye"), StreamError),
        (b"\x1a\x01", MalformedFrameError),
        (b"\x0f", MalformedFrameError),
        (b"\x1a\x63\x00\x00\x00", ProtocolError),
    ],
    ids=repr,
)
async def test_what_was_committed_outlives_the_fault(lie: Any, kind: type[DraftwireError]) -> None:
    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(welcome(endless_table())))
        (request,) = session.receive(await ws.receive_bytes())
        assert isinstance(request, Open)
        good = [Opened(stream=1), *(Commit(stream=1, path=0, accepted=0, token=token) for token in (5, 6, 7))]
        for message in good:
            await ws.send_bytes(session.send(message))
        await ws.send_bytes(lie if isinstance(lie, bytes) else session.send(lie))

    async with scripted_verifier(script) as url:
        error, partial = await misled(url)
    assert isinstance(error, kind)
    assert partial.token_ids == (5, 6, 7)
    assert partial.text == "efg"


async def test_a_tokenizer_that_is_none() -> None:
    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        await ws.send_bytes(session.send(welcome(endless_table())))

    broken = endless_table()
    for text in ("{}", "not JSON", '{"version": "1.0", "model": {}}'):
        broken.tokenizer_json = text
        async with scripted_verifier(script, target=broken) as url, AsyncEdgeClient(url) as client:
            with pytest.raises(DraftwireError) as caught:
                await wait_for(client.generate("abc", max_tokens=4))
            check_one_line(caught.value)


async def test_a_tokenizer_cut_short() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(VerifierError) as caught:
            await asyncio.to_thread(fetch_vocabulary, url)
        check_one_line(caught.value)
