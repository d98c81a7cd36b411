"""More sockets than there are places: idle ones, slow ones, bodies nobody asked for; and who is still answered."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import pytest
from draftwire.cloud_verifier.service import sending
from draftwire.cloud_verifier.service.http import Call, Reply, Route, json_reply
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.edge_client.transport import Transport

from ..grace import GRACE, wait_for
from .door_rig import ask, bearer, door_config, guarded_verifier, knock
from .idlers import Idler, crowd, few_places, generates, still_open

__all__ = ["few_places"]

ALICE = new_key()
HOST = b"Host: x\r\n"
BODILESS = ["GET /healthz", "GET /readyz", "GET /v1/models", "GET /v1/verify", "OPTIONS /v1/echo"]


async def echo(call: Call) -> Reply:
    return json_reply({"said": len(call.body)})


ECHO = Route(method="POST", path="/v1/echo", handler=echo)


# --- bodies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", [b"Content-Length: 1000", b"Transfer-Encoding: chunked"])
async def test_a_body_that_is_not_taken_is_refused_before_it_comes(header: bytes) -> None:
    """The other end lingers for a second each time, so the callers come together."""
    async with guarded_verifier(routes=[ECHO]) as verifier:

        async def told(line: str) -> bytes:
            head = line.encode() + b" HTTP/1.1\r\n" + HOST + header + b"\r\n\r\n"
            async with await Idler.connect(verifier, head) as idler:
                return await idler.end()

        answers = await asyncio.gather(*map(told, BODILESS))
        for line, answer in zip(BODILESS, answers, strict=True):
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert f"{line.split()[0]} '{line.split()[1]}' takes no body; leave it out".encode() in answer
            assert b"Connection: close" in answer
        assert verifier.refused == ["unexpected_body"] * len(BODILESS)


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
async def test_a_body_beyond_the_limit_is_cut_and_its_sender_told(declared: bool) -> None:
    async with guarded_verifier(routes=[ECHO]) as verifier:
        most = verifier.limits.max_message_bytes * 8
        field = b"Content-Length: 100000000000" if declared else b"Transfer-Encoding: chunked"
        piece = b"x" * 65536 if declared else b"10000\r\n" + b"x" * 65536 + b"\r\n"

        def send_without_end() -> tuple[int, bytes]:
            with socket.create_connection(("127.0.0.1", verifier.port), 60) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
                raw.sendall(b"POST /v1/echo HTTP/1.1\r\n" + HOST + field + b"\r\n\r\n")
                sent = 0
                with contextlib.suppress(ConnectionError):
                    while sent < 1 << 30:
                        raw.sendall(piece)
                        sent += len(piece)
                return sent, raw.recv(65536)

        sent, told = await wait_for(asyncio.to_thread(send_without_end))
        assert sent < 16 << 20  # the limit, what is lingered for, and what the kernel had taken on both sides
        assert told.startswith(b"HTTP/1.1 413 ")
        assert f"larger than {most} bytes".encode() in told
        assert verifier.refused == ["body_too_large"]
        assert verifier.doorkeeper.connections == 0


async def test_a_body_under_way_does_not_cost_a_refused_caller_its_answer() -> None:
    """It ends in order: closing over what is not read yet would be a reset."""
    async with guarded_verifier(door_config(keys={"alice": [ALICE]}), routes=[ECHO]) as verifier:
        head = b"POST /v1/echo HTTP/1.1\r\n" + HOST + b"Content-Length: 200000\r\n\r\n"
        async with await Idler.connect(verifier, head + bytes(200_000)) as idler:
            told = await wait_for(idler.reader.read())
        assert told.startswith(b"HTTP/1.1 401 ")


async def test_whoever_asks_before_it_sends_a_body_hears_when_it_is_admitted_and_not_before() -> None:
    async with guarded_verifier(door_config(keys={"alice": [ALICE]}), routes=[ECHO]) as verifier:
        for key, answers in ((ALICE, [b"100 Continue", b"200 OK"]), ("wrong", [b"401 Unauthorized"])):
            fields = b"Expect: 100-continue\r\nContent-Length: 5\r\nAuthorization: Bearer " + key.encode() + b"\r\n"
            head = b"POST /v1/echo HTTP/1.1\r\n" + HOST + fields + b"\r\n"
            async with await Idler.connect(verifier, head) as idler:
                for number, answer in enumerate(answers):
                    told = await wait_for(idler.reader.readuntil(b"\r\n\r\n"))
                    assert told.startswith(b"HTTP/1.1 " + answer)
                    if number == 0:
                        idler.writer.write(b"hello")


# --- sockets ------------------------------------------------------------------------------------------------------

CROWDS = {
    "silent": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHo",
    "resting": b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n",
    "bodies for nobody": b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nx",
    "bodies that are not taken": b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\nx",
}


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("name", CROWDS)
async def test_an_idle_crowd_holds_a_few_sockets_and_keeps_nobody_out(name: str) -> None:
    async with guarded_verifier(door_config(limits={"max_connections": 4, "hello_seconds": 1e6})) as verifier:
        async with crowd(verifier, 40, CROWDS[name]) as idlers:
            for _ in range(3):
                assert (await ask(verifier, "/healthz")).body == b"ok\n"
                assert await generates(verifier)
            await still_open(idlers, 8)
        assert verifier.refused.count("no_room") >= 30 or name.startswith("bodies")


@pytest.mark.usefixtures("few_places")
async def test_health_is_told_while_all_places_are_taken_and_a_crowd_waits() -> None:
    async with guarded_verifier(door_config(limits={"max_connections": 4, "hello_seconds": 1e6})) as verifier:
        held = [await Transport.connect(verifier.url) for _ in range(4)]
        async with crowd(verifier, 40) as idlers:
            assert (await ask(verifier, "/readyz")).status == 200
            answer = await knock(verifier)
            assert (answer.status, answer.json["error"]) == (503, "all 4 connections are in use; try again later")
            await still_open(idlers, 4)
            for each in held:  # guests are not shown out
                await wait_for(each.ping())
        for each in held:
            await each.close()


@pytest.mark.usefixtures("few_places")
async def test_one_addresss_crowd_is_its_own_trouble() -> None:
    config = door_config(limits={"max_connections": 100, "max_connections_per_address": 2, "hello_seconds": 1e6})
    async with guarded_verifier(config) as verifier, crowd(verifier, 20, address="127.0.0.2") as idlers:
        await still_open(idlers, 4)
        assert await generates(verifier)


@pytest.mark.usefixtures("few_places")
async def test_a_burst_waits_in_line_and_every_caller_is_answered() -> None:
    config = door_config(keys={"alice": [ALICE]}, limits={"max_connections": 4, "hello_seconds": 1e6})
    async with guarded_verifier(config, routes=[ECHO]) as verifier:
        calls = (ask(verifier, "/v1/echo", method="POST", headers=bearer("wrong"), body=b"{}") for _ in range(150))
        answers = await asyncio.gather(*calls)
        assert {answer.status for answer in answers} == {401, 429}
        assert sum(verifier.refused.count(why) for why in ("unauthorized", "failed_keys")) == 150


async def test_a_caller_that_does_not_read_is_let_go_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole answers as well as streams: here of a route that anybody may call."""
    monkeypatch.setattr(sending, "WRITE_SECONDS", 0.2)
    monkeypatch.setattr(sending, "_WRITE_BYTES", 1e12)
    caplog.set_level(logging.INFO, logger=sending.__name__)
    large = Route(method="GET", path="/large", handler=_large, public=True)
    async with guarded_verifier(routes=[large]) as verifier:
        with socket.create_connection(("127.0.0.1", verifier.port)) as raw:
            raw.sendall(b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n")
            async with asyncio.timeout(GRACE):
                while "a caller is cut off: it does not read" not in caplog.text:
                    await asyncio.sleep(0.01)


async def test_a_guest_keeps_its_place_until_its_answer_is_sent() -> None:
    large = Route(method="GET", path="/large", handler=_large)
    request = b"GET /large HTTP/1.1\r\n" + HOST + b"\r\n"
    async with (
        guarded_verifier(door_config(limits={"max_connections": 1}), routes=[large]) as verifier,
        await Idler.connect(verifier, request) as slow,
    ):
        await wait_for(slow.reader.readuntil(b"\r\n\r\n"))  # and no more, so that the rest waits
        assert (await ask(verifier, "/v1/models")).status == 503
        await wait_for(slow.reader.readexactly(64 << 20))
        async with asyncio.timeout(GRACE):
            while (await ask(verifier, "/v1/models")).status != 200:
                await asyncio.sleep(0.01)


async def test_a_body_that_is_not_of_its_encoding_is_the_callers_fault(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded_verifier(routes=[ECHO]) as verifier:
        headers = {"Content-Encoding": "gzip"}
        answer = await ask(verifier, "/v1/echo", method="POST", headers=headers, body=b"no gzip at all")
        assert (answer.status, verifier.refused) == (400, ["bad_request"])
        assert "the request's body is malformed" in answer.json["error"]
        assert (await ask(verifier, "/healthz")).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_the_websocket_has_no_head() -> None:
    async with guarded_verifier() as verifier:
        answer = await ask(verifier, "/v1/verify", method="POST")
        assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def _large(call: Call) -> Reply:
    del call
    return Reply(body=bytes(64 << 20))
