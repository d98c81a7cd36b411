"""Clients that do not read, or send more than is taken; and a verifier that must end all the same."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import signal
import socket
import sys
from typing import Any

import pytest
from draftwire.protocol.codes import SUBPROTOCOL, Role
from draftwire.protocol.messages import Draft, End, Hello, Message, Open
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import Session

from ..grace import GRACE, wait_for
from ..soak.resources import resources_of
from .raw_client import RawClient
from .running_verifier import RunningVerifier, honest_stream, running_verifier
from .table_targets import HeldTarget, endless_table, reference_tokens
from .verifier_process import port_of, serving_table

PROMPT = [1, 7, 3]
STREAMS = 8
FLAT = 6e6
"""Bytes: what waits to be sent to one reader, with Python's objects for it, and the text of the streams."""


def held_target(**options: Any) -> HeldTarget:
    return HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4, **options)


# --- a client that does not read ----------------------------------------------------------------------------------


class StalledReader:
    """Opens streams over a bare socket and reads nothing after the handshake."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.session = Session(Role.CLIENT)

    @classmethod
    async def connect(cls, verifier: RunningVerifier) -> StalledReader:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", verifier.port))
        client = cls(*await asyncio.open_connection(sock=raw, limit=1024))
        key = base64.b64encode(bytes(16)).decode()
        client._writer.write(
            f"GET /v1/verify HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n\r\n".encode()
        )
        await client._reader.readuntil(b"\r\n\r\n")
        client.send(Hello(fingerprint=verifier.target.info.fingerprint))
        length = (await client._reader.readexactly(2))[1]
        client.session.receive(await client._reader.readexactly(length))
        return client

    def send(self, message: Message) -> None:
        frame = self.session.send(message)
        assert len(frame) < 126
        self._writer.write(bytes([0x82, 0x80 | len(frame)]) + bytes(4) + frame)

    def open(self, stream: int, *, max_tokens: int) -> None:
        self.send(
            Open(
                stream=stream,
                token_ids=tuple(PROMPT),
                prompt_length=len(PROMPT),
                params=SamplingParams(),
                max_tokens=max_tokens,
                seed=1,
            )
        )

    def close(self) -> None:
        self._writer.transport.abort()


async def stalled_reader(verifier: RunningVerifier, *, max_tokens: int = 2_000_000) -> StalledReader:
    client = await StalledReader.connect(verifier)
    for stream in range(1, STREAMS + 1):
        client.open(stream, max_tokens=max_tokens)
    return client


async def test_a_client_that_does_not_read_loses_its_streams_and_no_one_else_notices() -> None:
    target = held_target(max_context=5_000_000)
    target.let_go()
    async with running_verifier(target) as verifier, honest_stream(verifier):
        client = await stalled_reader(verifier)
        # It may be cut off before its last OPEN is read; every stream that was opened must end.
        await target.until(lambda: target.opened > 1 and len(target.closed) == target.opened)
    client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_memory_stays_flat_while_nobody_reads() -> None:
    """As many streams as there are places, which would go on for millions of tokens: whoever comes next gets one of the
    places, as the streams end, and until then the verifier has put hardly anything by.
    """
    with serving_table("--step-ms", "0", "--context", str(5_000_000)) as (process, url):
        verifier = in_another_process(url)
        async with await RawClient.connect(verifier) as witness:
            tokens, _ = await witness.follow(await witness.open(PROMPT, max_tokens=2000))  # what is allocated once is
            assert tuple(tokens) == reference_tokens(verifier.target, PROMPT, 2000)
            before = peak = resources_of(process.pid).memory
            stalled = await stalled_reader(verifier)
            async with await RawClient.connect(verifier) as later:
                await wait_for(later.transport.ping())  # what came before it was read
            following = asyncio.create_task(witness.follow(await witness.open(PROMPT, max_tokens=10)))
            while not following.done():
                peak = max(peak, resources_of(process.pid).memory)
                await asyncio.sleep(0.005)
            assert tuple(following.result()[0]) == reference_tokens(verifier.target, PROMPT, 10)
        stalled.close()
    print(f"{before / 1e6:.1f} MB, at most {(peak - before) / 1e6:.1f} MB more")
    assert peak - before < FLAT


# --- a client that sends more than is taken -----------------------------------------------------------------------


async def test_a_flood_is_held_back_and_nothing_of_it_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the target is in a step its frames are not read on; others' are, and at last every one counts."""
    target, held = held_target(), asyncio.Event()
    async with running_verifier(target) as verifier, await RawClient.connect(verifier) as client:
        engine, loop = verifier.engine, asyncio.get_running_loop()
        monkeypatch.setattr(engine._inbox, "_room", 500)
        when_room = engine.when_room

        def watch(owner: Any, action: Any) -> None:
            loop.call_soon_threadsafe(held.set)
            when_room(owner, action)

        monkeypatch.setattr(engine, "when_room", watch)
        stream = await client.open(PROMPT, max_tokens=40, drafting=True)
        await target.until(lambda: target.entered == 1)
        for path in range(1, 3001):
            wrong = Draft(stream=stream, path=path, start=3, token_ids=(23,), confidences=(0,), sent_at=0)
            await wait_for(client.send(wrong))
        await wait_for(held.wait())
        async with await RawClient.connect(verifier) as other:
            await wait_for(other.transport.ping())
            assert len(engine._inbox) < 100
            target.let_go()
            tokens, end = await client.follow(stream)
            assert isinstance(end, End)
            assert tuple(tokens) == reference_tokens(target, PROMPT, 40)
            second = await client.open(PROMPT, max_tokens=5)  # behind the whole flood
            assert tuple((await client.follow(second))[0]) == reference_tokens(target, PROMPT, 5)


# --- a verifier told to end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    """The first one waits for the step, which here takes for ever."""
    with serving_table("--stuck") as (process, url):
        client = await RawClient.connect(in_another_process(url))
        await client.open(PROMPT)
        assert process.stdout is not None
        assert process.stdout.readline() == "stuck\n"
        process.send_signal(signal.SIGTERM)
        await wait_for(refusal(port_of(url)))
        process.send_signal(second)
        assert process.wait(GRACE) == -second
        await client.transport.close()


def in_another_process(url: str) -> RunningVerifier:
    return RunningVerifier(url, port_of(url), None, endless_table(), None)  # type: ignore[arg-type]


async def refusal(port: int) -> None:
    """Ask until the verifier takes no more work."""
    with contextlib.suppress(ConnectionError):
        answer = b"200"
        while b" 503 " not in answer:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            answer = await reader.readline()
            writer.close()
            await writer.wait_closed()


async def test_a_reader_that_stalls_does_not_hold_the_end_up() -> None:
    """Told to end, with streams that run to nobody: they get their time, and then the program is over all the same."""
    with serving_table() as (process, url):
        verifier = in_another_process(url)
        client = await stalled_reader(verifier, max_tokens=4000)
        async with await RawClient.connect(verifier) as witness:
            await wait_for(witness.transport.ping())  # what came before it was read
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, GRACE) == 0
        client.close()
