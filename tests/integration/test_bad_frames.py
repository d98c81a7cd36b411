"""Frames that break the protocol: a typed ERROR for the stream or the connection they are of, and for no other."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from draftwire.edge_client.transport import Transport
from draftwire.protocol.codes import SUBPROTOCOL
from draftwire.protocol.errors import ConnectionLostError, ErrorCode
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Cancel, Commit, Draft, End, EndReason, Error, Hello, Open, Opened, Policy
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ

from ..grace import GRACE, wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, honest_stream, running_verifier
from .table_targets import HeldTarget, reference_tokens

PROMPT = [1, 7, 3]
VOCABULARY = 24


@pytest.fixture
async def held() -> AsyncIterator[RunningVerifier]:
    """A verifier whose steps need leave, so that streams are open for as long as a test wants."""
    target = HeldTarget(vocabulary_size=VOCABULARY, seed=5, eos_bias=-1e4)
    async with running_verifier(target, max_context=600, max_message_bytes=2048) as running:
        yield running


@pytest.fixture
async def verifier(held: RunningVerifier) -> RunningVerifier:
    """The same, running freely."""
    held.target.let_go()
    return held


def draft(**changes: Any) -> Draft:
    """A DRAFT that would be fine for stream 1 of PROMPT."""
    fields: dict[str, Any] = {"stream": 1, "path": 1, "start": 3, "token_ids": (4, 5), "sent_at": 9, **changes}
    fields.setdefault("confidences", (0,) * len(fields["token_ids"]) if fields.get("sparse_q") is None else ())
    return Draft(**fields)


def opening(stream: int = 2, *, tokens: tuple[int, ...] = (1, 2, 3), force: Any = None, **changes: Any) -> Open:
    """An OPEN; ``force`` sets sampling parameters past their own checks."""
    params = SamplingParams(temperature=0.5)
    for name, value in (force or {}).items():
        object.__setattr__(params, name, value)
    fields: dict[str, Any] = {"prompt_length": len(tokens), "params": params, "max_tokens": 4, "seed": 0, **changes}
    return Open(stream=stream, token_ids=tokens, **fields)


def frame(message: Any, *, vocabulary: int = VOCABULARY) -> bytes:
    """The frame of a message, with none of the session's checks."""
    return encode(message, vocabulary)


# --- faults of the whole connection -------------------------------------------------------------------------------

CONNECTION_FAULTS: dict[str, tuple[bytes | str, ErrorCode]] = {
    "empty": (b"", ErrorCode.MALFORMED_FRAME),
    "text": ("hello", ErrorCode.MALFORMED_FRAME),
    "unknown type": (b"\x0f\x01", ErrorCode.MALFORMED_FRAME),
    "type 0": (b"\x00\x01", ErrorCode.MALFORMED_FRAME),
    "one byte": (b"\x03", ErrorCode.MALFORMED_FRAME),
    "an endless stream id": (b"\x03" + b"\xff" * 12, ErrorCode.MALFORMED_FRAME),
    "stream 0": (b"\x04\x00", ErrorCode.MALFORMED_FRAME),
    "a second HELLO": (frame(Hello(agent="again")), ErrorCode.ILLEGAL_MESSAGE),
    "the verifier's COMMIT": (frame(Commit(stream=1, path=1, accepted=9, token=3)), ErrorCode.ILLEGAL_MESSAGE),
    "the verifier's END": (frame(End(stream=1, reason=EndReason.STOP)), ErrorCode.ILLEGAL_MESSAGE),
    "the verifier's ERROR": (frame(Error(stream=1, code=ErrorCode.INTERNAL)), ErrorCode.ILLEGAL_MESSAGE),
    "a DRAFT for a stream never opened": (frame(draft(stream=9)), ErrorCode.ILLEGAL_MESSAGE),
    "a CANCEL for a stream never opened": (frame(Cancel(stream=9)), ErrorCode.ILLEGAL_MESSAGE),
    "an OPEN that skips ids": (frame(opening(7)), ErrorCode.ILLEGAL_MESSAGE),
    "an OPEN of an open stream": (frame(opening(1)), ErrorCode.ILLEGAL_MESSAGE),
}


@pytest.mark.parametrize("name", CONNECTION_FAULTS)
async def test_a_fault_of_the_connection_ends_it_alone(name: str, verifier: RunningVerifier) -> None:
    data, code = CONNECTION_FAULTS[name]
    async with honest_stream(verifier), await RawClient.connect(verifier) as client:
        await client.open(PROMPT, max_tokens=500)
        await client.send_raw(data)
        message = await client.receive()
        while not isinstance(message, Error):
            message = await client.receive()
        assert (message.stream, message.code) == (0, code)
        assert message.message
        assert "\n" not in message.message
        with pytest.raises(ConnectionLostError, match="1002"):
            await wait_for(client.transport.receive())
    await verifier.target.until(lambda: len(verifier.target.closed) == verifier.target.opened == 2)


async def test_the_first_frame_must_be_hello(verifier: RunningVerifier) -> None:
    for data, code in (
        (frame(opening(1)), ErrorCode.ILLEGAL_MESSAGE),
        (b"\x01\x09" + frame(Hello(agent="x"))[2:], ErrorCode.VERSION_MISMATCH),
        (b"\x01", ErrorCode.MALFORMED_FRAME),
        (b"\x01" + b"\x01" * 5000, ErrorCode.FRAME_TOO_LARGE),
    ):
        async with honest_stream(verifier, count=20):
            transport = await Transport.connect(verifier.url)
            await transport.send(data)
            reply = RawClient(transport)
            message = await wait_for(transport.receive())
            assert isinstance(message, bytes)
            reply.session.send(Hello(agent="x"))
            (error,) = reply.session.receive(message)
            assert isinstance(error, Error)
            assert (error.stream, error.code) == (0, code)
            await transport.close()


@pytest.mark.parametrize("size", [2049, 60_000, 200_000])
async def test_an_oversized_message(size: int, verifier: RunningVerifier) -> None:
    """Up to the limit of the socket itself the reply states the limit; beyond it the connection closes with 1009."""
    async with honest_stream(verifier), await RawClient.connect(verifier) as client:
        await client.send_raw(b"\x04\x01" + bytes(size - 2))
        if size < 64 * 1024:
            message = await client.receive()
            assert isinstance(message, Error)
            assert message.code is ErrorCode.FRAME_TOO_LARGE
            assert "2048" in message.message
        with pytest.raises(ConnectionLostError, match="1002" if size < 64 * 1024 else "1009"):
            await wait_for(client.transport.receive())


# --- faults of one stream -----------------------------------------------------------------------------------------

STREAM_FAULTS: dict[str, tuple[bytes, int, ErrorCode, str]] = {
    # name: frame, the stream it is of, code, a word of the reply
    "half a DRAFT": (frame(draft())[:-1], 1, ErrorCode.MALFORMED_FRAME, ""),
    "a DRAFT with more than it says": (frame(draft()) + b"\x00", 1, ErrorCode.MALFORMED_FRAME, ""),
    "an id of the vocabulary's size": (
        frame(draft(token_ids=(24,)), vocabulary=32),
        1,
        ErrorCode.MALFORMED_FRAME,
        "24",
    ),
    "the largest id that fits": (frame(draft(token_ids=(4, 31)), vocabulary=32), 1, ErrorCode.MALFORMED_FRAME, "31"),
    "a path that starts in the future": (frame(draft(start=5)), 1, ErrorCode.ILLEGAL_MESSAGE, "5"),  # 4 will be there
    "a path that starts at 2**30": (frame(draft(start=2**30)), 1, ErrorCode.ILLEGAL_MESSAGE, ""),
    "too many tokens in one": (frame(draft(token_ids=(4,) * 65)), 1, ErrorCode.FRAME_TOO_LARGE, "64"),
    "sparse_q in greedy mode": (
        frame(draft(token_ids=(4,), sparse_q=(SparseQ((4,), (1,)),))),
        1,
        ErrorCode.ILLEGAL_MESSAGE,
        "sparse_q",
    ),
    "a tree": (frame(draft(parents=(0, 0))), 1, ErrorCode.ILLEGAL_MESSAGE, "TREES"),
    "another source": (frame(draft(source=2)), 1, ErrorCode.ILLEGAL_MESSAGE, "SOURCES"),
    "a prompt with an id out of range": (
        frame(opening(tokens=(1, 24)), vocabulary=32),
        2,
        ErrorCode.MALFORMED_FRAME,
        "24",
    ),
    "a prompt beyond the context": (frame(opening(tokens=(1,) * 597)), 2, ErrorCode.PROMPT_TOO_LONG, "600"),
    "half an OPEN": (frame(opening())[:-3], 2, ErrorCode.MALFORMED_FRAME, ""),
    "a stop id out of range": (frame(opening(stop_ids=(24,)), vocabulary=32), 2, ErrorCode.MALFORMED_FRAME, "24"),
}

PARAMETER_FAULTS: dict[str, tuple[float, ...]] = {
    "temperature": (-1.0, 101.0, math.nan, math.inf),
    "top_p": (-1.0, 0.0, 2.0, math.nan),
    "min_p": (-0.5, 2.0, math.nan),
    "repetition_penalty": (-1.0, 0.0, 101.0, math.nan),
    "presence_penalty": (-3.0, 3.0, math.nan),
    "frequency_penalty": (-3.0, 3.0, -math.inf),
}

STREAM_FAULTS |= {
    f"a {field} of {value}": (frame(opening(force={field: value})), 2, ErrorCode.INVALID_PARAMETER, f"{field}: must be")
    for field, values in PARAMETER_FAULTS.items()
    for value in values
}


@pytest.mark.parametrize("name", STREAM_FAULTS)
async def test_a_fault_of_one_stream_ends_it_alone(name: str, held: RunningVerifier) -> None:
    """Its neighbour on the same connection, and another connection, generate on."""
    data, faulty, code, word = STREAM_FAULTS[name]
    async with await RawClient.connect(held) as client:
        await client.open(PROMPT, max_tokens=30, drafting=True)
        await held.target.until(lambda: held.target.entered == 1)
        if faulty == 1:
            honest = await client.open(PROMPT, max_tokens=30)
        else:
            client.session.send(opening())  # so that this end knows the stream that the bad frame opens
            honest = 1
        await client.send_raw(data)
        if faulty == 2:
            await client.open(PROMPT, max_tokens=30)
        await client.transport.ping()  # it has been read before a step is taken
        held.target.let_go()
        async with honest_stream(held, count=20):
            others = [honest] if faulty == 1 else [1, 3]
            tokens: dict[int, list[int]] = {stream: [] for stream in others}
            error = None
            ended: set[int] = set()
            while len(ended) < len(others) or error is None:
                match await client.receive():
                    case Commit(stream=stream, token=int(token)) if stream in tokens:
                        tokens[stream].append(token)
                    case Error() as error:
                        assert (error.stream, error.code) == (faulty, code), error
                        assert word in error.message
                        assert "\n" not in error.message
                    case End(stream=stream):
                        ended.add(stream)
                    case Opened() | Commit():
                        pass
    expected = list(reference_tokens(held.target, PROMPT, 30))
    assert tokens == dict.fromkeys(others, expected)


async def test_a_draft_with_a_gap(held: RunningVerifier) -> None:
    async with await RawClient.connect(held) as client:
        await client.open(PROMPT, max_tokens=30, drafting=True)
        await held.target.until(lambda: held.target.entered == 1)
        await client.send(draft())
        await client.send(draft(start=6))
        await client.transport.ping()
        held.target.let_go()
        _, error = await client.follow(1)
        assert isinstance(error, Error)
        assert error.code is ErrorCode.ILLEGAL_MESSAGE
        assert "starts at 6" in error.message
        second = await client.open(PROMPT, max_tokens=30)
        assert (await client.follow(second))[0] == list(reference_tokens(held.target, PROMPT, 30))


# --- frames that are late or forged, and must change nothing ------------------------------------------------------


async def committed_with(held: RunningVerifier, frames: list[bytes], *, policy: Policy = Policy.LATENCY) -> list[int]:
    """Tokens of a stream of 12, with ``frames`` sent while its first step is under way."""
    async with await RawClient.connect(held) as client:
        await client.open(PROMPT, max_tokens=12, drafting=True, policy=policy)
        if policy is Policy.LATENCY:
            await held.target.until(lambda: held.target.entered == 1)
        for data in frames:
            await client.send_raw(data)
        await client.transport.ping()
        held.target.let_go()
        proposals = {1: [4, 5], 2: [6], 3: [7, 8]}
        tokens: list[int] = []
        while True:
            message = await client.receive()
            if isinstance(message, Commit):
                if message.accepted:
                    tokens += proposals[message.path][: message.accepted]
                tokens += [message.token] if message.token is not None else []
            elif isinstance(message, End):
                assert message.committed_tokens == len(tokens)
                return tokens
            else:
                assert isinstance(message, Opened), message


@pytest.mark.parametrize(
    "frames",
    [
        [draft()],
        [draft(path=2, token_ids=(6,)), draft(path=1)],  # the second comes from a path that has been left
        [draft(path=2**32 - 1, token_ids=(6,)), draft(path=5)],
        [draft(start=1, token_ids=(9, 9))],  # contradicts the prompt
        [draft(start=1, token_ids=(9, 9)), draft(start=3, token_ids=(4, 4))],  # goes on from there
        [draft(token_ids=())],
        [draft(token_ids=(), continues=True)],
        [draft(), draft(path=2, token_ids=(6,)), draft(path=3, token_ids=(7, 8))],
        [draft(), draft(path=2, token_ids=(6,), continues=True)],
        [draft(sent_at=0), draft(start=5, token_ids=(), sent_at=65535)],
    ],
    ids=str,
)
async def test_late_and_forged_drafts_change_nothing(frames: list[Draft], held: RunningVerifier) -> None:
    expected = list(reference_tokens(held.target, PROMPT, 12))
    assert await committed_with(held, [frame(message) for message in frames]) == expected


async def test_drafts_for_streams_that_are_over_are_dropped(verifier: RunningVerifier) -> None:
    async with await RawClient.connect(verifier) as client:
        await client.open(PROMPT, max_tokens=5, drafting=True)
        await client.follow(1)
        for data in (frame(draft()), frame(Cancel(stream=1)), frame(draft(start=2**20)), frame(draft())[:-1]):
            await client.send_raw(data)
        second = await client.open(PROMPT, max_tokens=5)
        assert (await client.follow(second))[0] == list(reference_tokens(verifier.target, PROMPT, 5))


@pytest.mark.parametrize("last", [25, 26], ids=["as much as was agreed", "a token more"])
async def test_a_client_that_drafts_without_end(last: int, held: RunningVerifier) -> None:
    """The backlog is bounded. All of it is right, so that the path stays alive: 64 tokens may follow the first step."""
    text = reference_tokens(held.target, PROMPT, 100)
    async with await RawClient.connect(held) as client:
        stream = await client.open(PROMPT, max_tokens=100, drafting=True)
        await held.target.until(lambda: held.target.entered == 1)
        for begin, end in ((0, 40), (40, 40 + last)):
            await client.send(draft(start=3 + begin, token_ids=text[begin:end]))
        await client.transport.ping()
        held.target.let_go()
        message = await client.receive()
        while not isinstance(message, Error | End):
            message = await client.receive()
        if last == 25:
            assert isinstance(message, End)
            assert message.accepted_tokens > 0
        else:
            assert isinstance(message, Error)
            assert (message.stream, message.code) == (stream, ErrorCode.FRAME_TOO_LARGE)
            assert message.message == "more than 64 draft tokens are waiting"
        second = await client.open(PROMPT, max_tokens=30)
        assert (await client.follow(second))[0] == list(text[:30])


# --- below the frames ---------------------------------------------------------------------------------------------


async def tcp(verifier: RunningVerifier, *pieces: bytes, upgrade: bool) -> bytes:
    """Write bytes to the socket and hang up; returns what came back meanwhile."""
    reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
    answer = b""
    if upgrade:
        key = base64.b64encode(bytes(16)).decode()
        writer.write(
            f"GET /v1/verify HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )
        answer = await wait_for(reader.readuntil(b"\r\n\r\n"))
        assert b"101" in answer
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    writer.write_eof()
    async with asyncio.timeout(GRACE):
        answer += await reader.read()
    writer.close()
    return answer


MASK = b"\x00\x00\x00\x00"
HELLO = frame(Hello(agent="half"))


@pytest.mark.parametrize(
    "pieces",
    [
        (b"\x82",),
        (b"\x82\x85", MASK, b"\x01\x01"),  # two of five bytes
        (b"\x82\xff\x00\x00\x00\x00\x00\x00\x10\x00", MASK),  # a length, and nothing of it
        (b"\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff", MASK),  # a monstrous length
        (b"\x82" + bytes([len(HELLO)]) + HELLO,),  # not masked
        (b"\xff\xff\xff\xff",),
        (b"\x82" + bytes([0x80 | len(HELLO)]) + MASK + HELLO, b"\x02\x85", MASK),  # a fragment after HELLO
        (b"GET / HTTP/1.1\r\n\r\n",),
    ],
    ids=repr,
)
async def test_half_written_frames(pieces: tuple[bytes, ...], verifier: RunningVerifier) -> None:
    async with honest_stream(verifier):
        await tcp(verifier, *pieces, upgrade=True)


@pytest.mark.parametrize("pieces", [(b"GET /v1/ver",), (b"\x00" * 100,), (b"",), (b"GET /v1/verify HTTP/1.1\r\n\r\n",)])
async def test_half_written_requests(pieces: tuple[bytes, ...], verifier: RunningVerifier) -> None:
    async with honest_stream(verifier):
        await tcp(verifier, *pieces, upgrade=False)


def random_frame(random_: random.Random) -> bytes:
    """Random bytes, or a good frame with something wrong in it."""
    if random_.random() < 0.3:
        return random_.randbytes(random_.randrange(40))
    good = bytearray(
        random_.choice(
            [
                frame(draft()),
                frame(draft(token_ids=(4,) * 20, continues=True)),
                frame(opening(2)),
                frame(opening(2, prefix=None, stop_ids=(1, 2), drafting=True, retain=True)),
                frame(Cancel(stream=1)),
                frame(Hello(agent="x")),
            ]
        )
    )
    for _ in range(random_.randrange(1, 4)):
        match random_.randrange(3):
            case 0:
                good[random_.randrange(len(good))] = random_.randrange(256)
            case 1:
                del good[random_.randrange(len(good)) :]
            case 2:
                good[random_.randrange(len(good) + 1) :] = random_.randbytes(random_.randrange(12))
        if not good:
            return b""
    return bytes(good)


async def listen(transport: Transport) -> None:
    """Take whatever comes until the connection closes."""
    with contextlib.suppress(ConnectionLostError):
        while True:
            await transport.receive()


async def test_any_bytes_whatever(verifier: RunningVerifier) -> None:
    """Each of several hundred broken frames is answered or ignored, and harms nobody."""
    random_ = random.Random(20)
    survived = closed = 0
    async with honest_stream(verifier, count=500):
        while survived + closed < 400:
            async with await RawClient.connect(verifier) as client:
                await client.open(PROMPT, max_tokens=500, drafting=True)
                listening = asyncio.create_task(listen(client.transport))
                try:
                    while survived + closed < 400:
                        await client.send_raw(random_frame(random_))
                        await wait_for(client.transport.ping())
                        survived += 1
                except ConnectionLostError:
                    closed += 1
            await listening
    assert min(survived, closed) > 20
    await verifier.target.until(lambda: len(verifier.target.closed) == verifier.target.opened)
    assert verifier.engine.active_streams == 0
    assert verifier.engine.running
