"""WebSockets as RFC 6455 does not have them, and floods of what it allows: each ends alone, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from draftwire.cloud_verifier.service import peer
from draftwire.protocol.codes import Role
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Cancel, Hello
from draftwire.protocol.session import Session

from ..grace import GRACE, wait_for
from .door_rig import GuardedVerifier, ask, door_config, guarded_verifier, knock, upgrade_head
from .raw_client import RawClient
from .running_verifier import honest_stream
from .table_targets import PacedTarget

HELLO = Session(Role.CLIENT).send(Hello(agent="attacker"))
CONTINUED, TEXT, BINARY, CLOSE, PING = 0, 1, 2, 8, 9


def frame(
    opcode: int, payload: bytes = b"", *, last: bool = True, reserved: int = 0, length: int | None = None
) -> bytes:
    """A frame, masked with zeros; ``length`` is what it claims."""
    claimed = len(payload) if length is None else length
    head = bytes([last << 7 | reserved << 4 | opcode])
    if claimed < 126:
        head += bytes([0x80 | claimed])
    elif claimed < 1 << 16:
        head += b"\xfe" + struct.pack(">H", claimed)
    else:
        head += b"\xff" + struct.pack(">Q", claimed)
    return head + bytes(4) + payload


@asynccontextmanager
async def upgraded(
    verifier: GuardedVerifier, *, extra: str = ""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]]:
    """A socket behind the handshake, and the answer's head."""
    reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
    try:
        writer.write(upgrade_head(*([extra] if extra else [])))
        head = await wait_for(reader.readuntil(b"\r\n\r\n"))
        assert head.startswith(b"HTTP/1.1 101 ")
        yield reader, writer, head
    finally:
        writer.close()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Everything until the other end lets go."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while piece := await wait_for(reader.read(65536)):
            said += piece
    return said


BROKEN: dict[str, tuple[bytes, int]] = {
    # name: what is sent, the code that it is closed with
    "a frame of a terabyte": (frame(BINARY, b"xx", length=1 << 40), 1009),
    "a frame of 2**63 bytes": (frame(BINARY, b"xx", length=(1 << 63) + 5), 1009),
    "more than a message may have": (frame(BINARY, bytes(200_000)), 1009),
    "fragments without end": (
        frame(BINARY, bytes(1000), last=False) + frame(CONTINUED, bytes(1000), last=False) * 999,
        1009,
    ),
    "a message within a message": (frame(BINARY, b"a", last=False) + frame(BINARY, b"b"), 1002),
    "the end of what did not begin": (frame(CONTINUED, b"a"), 1002),
    "compression that was not agreed": (frame(BINARY, HELLO, reserved=4), 1002),
    "an unknown opcode": (frame(3, b"x"), 1002),
    "an unknown control opcode": (frame(11, b"x"), 1002),
    "a large ping": (frame(PING, bytes(126)), 1002),
    "a ping in pieces": (frame(PING, b"x", last=False), 1002),
    "text": (frame(TEXT, b"hello"), 1002),
    "text that is no UTF-8": (frame(TEXT, b"\xff\xfe"), 1007),
    "a close of one byte": (frame(CLOSE, b"x"), 1002),
    "a close with code 0": (frame(CLOSE, struct.pack(">H", 0)), 1002),
    "a close whose reason is no UTF-8": (frame(CLOSE, b"\x03\xe8\xff\xff"), 1007),
    "a large close": (frame(CLOSE, bytes(126)), 1002),
    "two closes and more": (frame(CLOSE, b"\x03\xe8") * 2 + frame(BINARY, b"x"), 1000),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_frame_ends_its_connection_alone(name: str) -> None:
    data, code = BROKEN[name]
    async with guarded_verifier() as verifier, honest_stream(verifier):
        async with upgraded(verifier) as (reader, writer, _):
            writer.write(data)
            if name == "text":  # an ERROR comes first, and the close is to be returned
                said = await wait_for(reader.readuntil(struct.pack(">H", code)))
                writer.write(frame(CLOSE, struct.pack(">H", code)))
            else:
                said = await rest(reader)
        assert struct.pack(">H", code) in said
        while verifier.doorkeeper.connections > 1:
            await asyncio.sleep(0.01)


async def test_compression_is_not_agreed_to() -> None:
    """Nothing is inflated, so there is nothing to bomb."""
    offer = "Sec-WebSocket-Extensions: permessage-deflate"
    async with guarded_verifier() as verifier, upgraded(verifier, extra=offer) as (_, _, head):
        assert b"sec-websocket-extensions" not in head.lower()


@pytest.mark.parametrize(
    "data",
    [b"", frame(BINARY, HELLO)[:-1], frame(BINARY, b"", last=False) + frame(CONTINUED, b"", last=False) * 1000],
    ids=["silence", "a frame without an end", "empty fragments without end"],
)
async def test_a_connection_that_never_says_hello_is_told_so(data: bytes) -> None:
    async with (
        guarded_verifier(door_config(limits={"hello_seconds": 0.3})) as verifier,
        honest_stream(verifier),
        upgraded(verifier) as (reader, writer, _),
    ):
        writer.write(data)
        said = await wait_for(reader.readuntil(b"idle"))
        assert b"no HELLO within 0.3 s" in said


async def test_a_flood_of_pings_is_cut_off_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "_PINGS_PER_MINUTE", 50.0)
    async with guarded_verifier() as verifier, honest_stream(verifier):
        async with upgraded(verifier) as (reader, writer, _):
            writer.write(frame(PING) * 50)
            for _ in range(50):
                assert await wait_for(reader.readexactly(2)) == b"\x8a\x00"
            writer.write(frame(PING) * 100_000)
            assert len(await rest(reader)) < 1000
        assert (await ask(verifier, "/healthz")).status == 200


async def test_a_flood_of_frames_leaves_the_event_loop_to_others() -> None:
    """Of 400 kB that came at once, no more than a few are taken in one turn of the loop."""
    flood = frame(BINARY, encode(Cancel(stream=1), 24)) * 50_000  # of a stream that is over, which is no fault
    async with guarded_verifier() as verifier, await RawClient.connect(verifier) as client:
        await client.open([4, 2], max_tokens=1)
        await client.follow(1)
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count_turns())
        client.transport._socket.transport.write(flood)
        await wait_for(client.transport.ping())  # all has been taken
        counting.cancel()
        assert turns > len(flood) // 5000


# --- clients that die ---------------------------------------------------------------------------------------------

STREAMER = """
import asyncio, sys
from draftwire.edge_client import AsyncEdgeClient

async def main():
    async with AsyncEdgeClient(sys.argv[1]) as client:
        async with client.stream([4, 2], max_tokens=3900) as stream:
            async for _ in stream:
                print("on", flush=True)

asyncio.run(main())
"""


async def test_clients_killed_in_mid_stream_leave_nothing(tmp_path: Path) -> None:
    target = PacedTarget(seconds=0.005, vocabulary_size=24, seed=5, eos_bias=-1e4)
    program = tmp_path / "streamer.py"
    program.write_text(STREAMER)
    async with guarded_verifier(target=target) as verifier:
        files = len(os.listdir("/proc/self/fd"))
        clients = []
        for _ in range(2):
            client = await asyncio.create_subprocess_exec(
                sys.executable, str(program), verifier.url, stdout=asyncio.subprocess.PIPE
            )
            clients.append(client)
            assert client.stdout is not None
            assert await wait_for(client.stdout.readline()) == b"on\n"
        assert verifier.engine.active_streams == 2
        for client in clients:
            client.send_signal(signal.SIGKILL)
            await wait_for(client.communicate())
        async with asyncio.timeout(GRACE):
            while verifier.engine.active_streams or verifier.doorkeeper.connections:
                await asyncio.sleep(0.01)
            while len(os.listdir("/proc/self/fd")) > files:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("line", ["GET /nowhere", "POST /healthz", "OPTIONS *", "GET http://other.example/x"])
@pytest.mark.parametrize("expect", ["\x9b\xff", "100-continue", "the unexpected"])
async def test_an_expectation_of_what_is_not_served_is_no_fault_of_ours(
    line: str, expect: str, caplog: pytest.LogCaptureFixture
) -> None:
    method, path = line.split()
    async with guarded_verifier() as verifier:
        answer = await ask(verifier, path, method=method, headers={"Expect": expect})
        assert answer.status == (405 if path == "/healthz" else 404)
        assert "is not served here" in answer.json["error"]
        assert verifier.refused == ["method_not_allowed" if path == "/healthz" else "not_found"]
        assert answer.headers.get("allow") == ("GET,OPTIONS" if path == "/healthz" else None)
    assert not caplog.records


async def test_an_expectation_of_a_preflight_is_no_fault_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded_verifier() as verifier:
        assert (await ask(verifier, "/healthz", method="OPTIONS", headers={"Expect": "\x9b\xff"})).status == 204
    assert not caplog.records


@pytest.mark.parametrize(
    "odd",
    [
        {"Sec-WebSocket-Key": "\xff\xfe"},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": None},
        {"Upgrade": "\xff\xfe"},
        {"Upgrade": "h2c"},
        {"Connection": "\xff"},
        {"Sec-WebSocket-Version": "12"},
        {"Sec-WebSocket-Version": "\xff"},
    ],
    ids=repr,
)
async def test_an_odd_handshake_is_told_what_a_good_one_is(
    odd: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded_verifier() as verifier:
        answer = await knock(verifier, headers=odd)
        assert (answer.status, verifier.refused) == (400, ["bad_request"])
        assert "Sec-WebSocket-Key of 16 bytes in base64" in answer.json["error"]
        assert "None" not in answer.json["error"]
        assert (await knock(verifier)).status == 101
    assert not caplog.records
