"""The door as clients, browsers and intruders meet it: keys, origins, limits, idle time, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import pytest
from draftwire.cloud_verifier.service import server as server_module
from draftwire.cloud_verifier.service.config import Config, RouteRules
from draftwire.cloud_verifier.service.http import Call, Reply, Route, json_reply
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import Transport
from draftwire.protocol.errors import (
    AuthenticationError,
    BusyError,
    ConnectionLostError,
    ErrorCode,
    PromptTooLongError,
    StreamError,
)
from draftwire.protocol.messages import End, Error, Hello

from ..grace import wait_for
from .door_rig import GuardedVerifier, ask, bearer, door_config, guarded_verifier, knock
from .raw_client import RawClient
from .running_verifier import honest_stream
from .table_targets import HeldTarget, reference_tokens

ALICE, BOB = new_key(), new_key()
KEYED = door_config(keys={"alice": [ALICE], "bob": [BOB]})


async def generates(verifier: GuardedVerifier, key: str | None = None, count: int = 5) -> bool:
    """Whether a client with this key gets the right answer."""
    async with AsyncEdgeClient(verifier.url, api_key=key) as client:
        result = await wait_for(client.generate([4, 2], max_tokens=count))
    return result.token_ids == reference_tokens(verifier.target, [4, 2], count)


async def closing(client: RawClient) -> tuple[Error, str]:
    """The connection's ERROR, and how the socket was closed after it."""
    message = await client.receive()
    while not isinstance(message, Error):
        message = await client.receive()
    assert message.stream == 0
    with pytest.raises(ConnectionLostError) as caught:
        await wait_for(client.transport.receive())
    return message, str(caught.value)


# --- keys ---------------------------------------------------------------------------------------------------------


async def test_a_key_lets_its_owner_in_and_nobody_else() -> None:
    async with guarded_verifier(KEYED) as verifier:
        assert await generates(verifier, ALICE)
        assert verifier.refused == []
        for key in (None, "wrong", ALICE[:-1]):
            async with AsyncEdgeClient(verifier.url, api_key=key) as client:
                with pytest.raises(AuthenticationError):
                    await wait_for(client.generate([1, 2], max_tokens=1))
        assert verifier.refused == ["unauthorized"] * 3  # one attempt each
        assert verifier.engine.active_streams == 0


async def test_a_refused_key_is_told_so_in_json_and_asked_for_a_bearer() -> None:
    async with guarded_verifier(KEYED) as verifier:
        for answer in (
            await knock(verifier),
            await knock(verifier, headers=bearer("wrong")),
            await ask(verifier, "/v1/models"),
            await ask(verifier, "/v1/tokenizer", headers=bearer("wrong")),
        ):
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert answer.headers["content-type"].startswith("application/json")
            assert "key" in answer.json["error"]
        assert (await knock(verifier, headers=bearer(ALICE))).status == 101
        assert (await ask(verifier, "/v1/models", headers=bearer(BOB))).status == 200
        assert [(await ask(verifier, path)).status for path in ("/healthz", "/readyz")] == [200, 200]


async def test_a_flood_of_wrong_keys_is_slowed_down_and_a_good_one_gets_through() -> None:
    async with guarded_verifier(KEYED) as verifier:
        answers = [await knock(verifier, headers=bearer(f"wrong{number}")) for number in range(14)]
        assert [answer.status for answer in answers[:10]] == [401] * 10
        assert answers[-1].status == 429
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 7
        assert await generates(verifier, ALICE)


ODD_KEYS = {
    "nothing": b"",
    "no key": b"Bearer",
    "a space": b"Bearer ",
    "another scheme": b"Basic " + ALICE.encode(),
    "letters of elsewhere": b"Bearer \xe9\xff",
    "half a code point": b"Bearer \xf0\x9f\xa6",
    "a large one": b"Bearer " + b"x" * 7000,
    "one of a megabyte": b"Bearer " + b"x" * (1 << 20),
    "two in one": b"Bearer " + ALICE.encode() + b", Bearer wrong",
    "the right one and a wrong one": b"Bearer " + ALICE.encode() + b"\r\nAuthorization: Bearer wrong",
    "a wrong one and the right one": b"Bearer wrong\r\nAuthorization: Bearer " + ALICE.encode(),
}


@pytest.mark.parametrize("name", ODD_KEYS)
async def test_a_key_of_an_odd_form_opens_nothing_and_breaks_nothing(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with guarded_verifier(KEYED) as verifier:
            reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: " + ODD_KEYS[name] + b"\r\n\r\n")
            head = await wait_for(reader.readuntil(b"\r\n\r\n"))
            assert head.split(b" ")[1] == (b"400" if "megabyte" in name else b"401")
            writer.close()
            assert await generates(verifier, ALICE)
    assert "Traceback" not in caplog.text
    assert ALICE not in caplog.text


async def test_a_key_in_a_url_opens_nothing() -> None:
    async with guarded_verifier(KEYED) as verifier:
        asked = ["?api_key=X", "?token=X", f"?x={ALICE}", f"?{ALICE}", f"?{ALICE}=1", f"/{ALICE}"]
        for path in (f"/v1/verify{each}" for each in asked):
            for headers in ({}, bearer(ALICE)):
                answer = await knock(verifier, path, headers=headers)
                assert answer.status == 400
                assert "Authorization: Bearer" in answer.json["error"]
                assert ALICE not in answer.body.decode()
        assert (await ask(verifier, f"/v1/models?key={ALICE}", headers=bearer(ALICE))).status == 400


async def test_no_key_is_in_any_log_of_the_service(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with guarded_verifier(KEYED) as verifier:
            await knock(verifier, headers=bearer(ALICE))
            await knock(verifier, headers=bearer(f"{BOB}x"))
            await knock(verifier, f"/v1/verify?api_key={ALICE}")
            await ask(verifier, f"/nowhere?api_key={ALICE}", headers=bearer(ALICE))
            await ask(verifier, f"/v1/models?api_key={ALICE}", method=f"BAD {ALICE}", headers=bearer(ALICE))
            await ask(verifier, "/v1/models", headers={**bearer(ALICE), "X-Broken\x00": ALICE})
    assert caplog.records
    assert ALICE not in caplog.text
    assert BOB not in caplog.text


# --- routes and browsers ------------------------------------------------------------------------------------------


async def test_a_route_that_is_not_set_up_is_not_there() -> None:
    async with guarded_verifier(Config(routes={"chat": RouteRules()})) as verifier:
        assert (await knock(verifier, "/v1/verify/chat")).status == 101
        answer = await knock(verifier, "/v1/verify/code")
        assert answer.status == 404
        assert "'code'" in answer.json["error"]


async def echo(call: Call) -> Reply:
    return json_reply({"said": call.body.decode()})


ECHO = Route(method="POST", path="/v1/echo", handler=echo)


async def test_a_browser_app_of_a_listed_origin_calls_with_its_key() -> None:
    page = {"Origin": "https://app.example"}
    config = door_config(keys={"alice": [ALICE]}, origins=frozenset(["https://app.example"]))
    async with guarded_verifier(config, routes=[ECHO]) as verifier:
        asking = {**page, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answer = await ask(verifier, "/v1/echo", method="OPTIONS", headers=asking)
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert answer.headers["access-control-allow-methods"] == "POST"
        assert answer.headers["access-control-allow-headers"] == "authorization"
        for headers, status in (({**page, **bearer(ALICE)}, 200), (page, 401)):  # an app must see why, too
            answer = await ask(verifier, "/v1/echo", method="POST", headers=headers, body=b"hello")
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "https://app.example"
            assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
        assert (await knock(verifier, headers={**page, **bearer(ALICE)})).status == 101


async def test_a_page_of_another_origin_gets_nothing() -> None:
    config = door_config(keys={"alice": [ALICE]}, origins=frozenset(["https://app.example"]))
    async with guarded_verifier(config, routes=[ECHO]) as verifier:
        evil = {"Origin": "https://evil.example", **bearer(ALICE)}
        for answer in (
            await knock(verifier, headers=evil),
            await ask(verifier, "/v1/echo", method="POST", headers=evil, body=b"x"),
            await ask(verifier, "/v1/echo", method="OPTIONS", headers=evil),
        ):
            assert answer.status == 403
            assert "--allow-origin" in answer.json["error"]
            assert "access-control-allow-origin" not in answer.headers


async def test_a_page_that_lets_its_name_point_to_this_machine_gets_nothing() -> None:
    async with guarded_verifier() as verifier:
        name = f"evil.example:{verifier.port}"
        assert (await knock(verifier, headers={"Host": name, "Origin": f"http://{name}"})).status == 403
        own = f"127.0.0.1:{verifier.port}"
        assert (await knock(verifier, headers={"Host": own, "Origin": f"http://{own}"})).status == 101


# --- limits -------------------------------------------------------------------------------------------------------


async def test_one_connection_too_many_is_told_which_limit_and_when_to_come_again() -> None:
    limits = {"max_connections": 3, "max_connections_per_key": 2}
    async with guarded_verifier(door_config(keys={"alice": [ALICE], "bob": [BOB]}, limits=limits)) as verifier:
        held = [await Transport.connect(verifier.url, headers=bearer(ALICE)) for _ in range(2)]
        answer = await knock(verifier, headers=bearer(ALICE))
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert "all 2 connections of this API key" in answer.json["error"]
        held.append(await Transport.connect(verifier.url, headers=bearer(BOB)))
        for answer in (
            await knock(verifier, headers=bearer(BOB)),
            await ask(verifier, "/v1/models", headers=bearer(BOB)),
        ):
            assert answer.status == 503
            assert "all 3 connections" in answer.json["error"]
        assert (await ask(verifier, "/healthz")).status == 200
        for transport in held:
            await transport.close()
        assert await generates(verifier, ALICE)


async def test_requests_a_minute_are_counted_per_key_over_all_its_connections() -> None:
    config = door_config(keys={"alice": [ALICE], "bob": [BOB]}, key_rules={"alice": {"requests_per_minute": 2}})
    async with guarded_verifier(config) as verifier:
        assert await generates(verifier, ALICE)
        async with AsyncEdgeClient(verifier.url, api_key=ALICE, **AT_ONCE) as client:
            await wait_for(client.generate([4, 2], max_tokens=2))
            with pytest.raises(BusyError, match="more than 2 requests a minute") as caught:
                await wait_for(client.generate([4, 2], max_tokens=2))
            assert caught.value.retry_after is not None
            assert 20 < caught.value.retry_after <= 30
        for _ in range(4):
            assert await generates(verifier, BOB)
        assert verifier.refused == ["requests_per_minute"]


async def test_prompt_and_output_tokens() -> None:
    limits = {"max_prompt_tokens": 4, "max_output_tokens": 6}
    async with (
        guarded_verifier(door_config(limits=limits)) as verifier,
        AsyncEdgeClient(verifier.url) as client,
    ):
        with pytest.raises(PromptTooLongError, match="at most 4"):
            await wait_for(client.generate([1] * 5, max_tokens=6))
        with pytest.raises(StreamError, match="max_tokens: asks for 7 tokens; at most 6") as caught:
            await wait_for(client.generate([1] * 4, max_tokens=7))
        assert caught.value.code is ErrorCode.INVALID_PARAMETER
        assert len((await wait_for(client.generate([1] * 4, max_tokens=6))).token_ids) == 6


# --- idle and slow ones -------------------------------------------------------------------------------------------


async def test_a_connection_without_streams_is_told_and_closed_and_one_with_a_stream_is_not() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with guarded_verifier(door_config(limits={"idle_seconds": 0.2}), target=target) as verifier:
        async with await RawClient.connect(verifier) as idle, await RawClient.connect(verifier) as busy:
            stream = await busy.open([1, 2], max_tokens=3)
            error, closed = await closing(idle)
            assert error.code is ErrorCode.IDLE_TIMEOUT
            assert "no stream for 0.2 s" in error.message
            assert "1001" in closed
            target.let_go()
            tokens, end = await busy.follow(stream)
            assert isinstance(end, End)
            assert tokens == list(reference_tokens(target, [1, 2], 3))
            assert (await closing(busy))[0].code is ErrorCode.IDLE_TIMEOUT
        assert verifier.doorkeeper.connections == 0


async def test_the_edge_client_comes_back_after_it_was_idle() -> None:
    async with (
        guarded_verifier(door_config(limits={"idle_seconds": 0.1})) as verifier,
        AsyncEdgeClient(verifier.url) as client,
    ):
        for _ in range(2):
            result = await wait_for(client.generate([4, 2], max_tokens=5))
            assert result.token_ids == reference_tokens(verifier.target, [4, 2], 5)
            while verifier.doorkeeper.connections:
                await asyncio.sleep(0.01)


async def test_a_connection_that_does_not_say_hello() -> None:
    async with guarded_verifier(door_config(limits={"hello_seconds": 0.2})) as verifier:
        transport = await Transport.connect(verifier.url)
        client = RawClient(transport)
        await client.transport.ping()  # pings are no HELLO
        error, closed = await closing(client)
        assert error.code is ErrorCode.IDLE_TIMEOUT
        assert "HELLO" in error.message
        assert "1001" in closed


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "bytes_",
    [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", HEALTH + b"GET /healthz HTTP/1.1\r\nX: "],
    ids=["silence", "half a line", "half a head", "half a second head"],
)
async def test_a_socket_that_asks_for_nothing_is_shown_out(bytes_: bytes) -> None:
    async with guarded_verifier(door_config(limits={"hello_seconds": 0.3})) as verifier, honest_stream(verifier):
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
        if bytes_.startswith(HEALTH):
            writer.write(HEALTH)
            await wait_for(reader.readuntil(b"ok\n"))
        writer.write(bytes_.removeprefix(HEALTH))

        async def trickle() -> None:
            while bytes_:
                writer.write(b"1")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        await wait_for(_end(reader))
        trickling.cancel()
        writer.close()
        assert verifier.refused == ["no_request"]


async def test_a_connection_may_rest_between_requests_for_longer_than_a_request_may_take() -> None:
    async with guarded_verifier(door_config(limits={"hello_seconds": 0.05})) as verifier, honest_stream(verifier):
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
        for _ in range(3):
            writer.write(HEALTH)
            await wait_for(reader.readuntil(b"ok\n"))
            await asyncio.sleep(0.1)
        writer.close()


async def _end(reader: asyncio.StreamReader) -> None:
    """The other end has let go; it has nothing to say before."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""


async def test_a_body_that_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_BODY_SECONDS", 0.1)
    async with guarded_verifier(routes=[ECHO]) as verifier:
        headers = {"Content-Length": "1000"}
        answer = await ask(verifier, "/v1/echo", method="POST", headers=headers)
        assert answer.status == 408
        assert "did not come whole within 0.1 s" in answer.json["error"]


# --- set anew while it runs ---------------------------------------------------------------------------------------


async def test_a_removed_keys_connections_end_and_all_others_go_on() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with guarded_verifier(KEYED, target=target) as verifier:
        gone = RawClient(await Transport.connect(verifier.url, headers=bearer(ALICE)))
        await gone.send(Hello(fingerprint=target.info.fingerprint))
        await gone.receive()
        await gone.open([1, 2], max_tokens=50)
        async with AsyncEdgeClient(verifier.url, api_key=BOB) as client:
            staying = asyncio.create_task(client.generate([4, 2], max_tokens=20))
            await target.step_until(lambda: target.opened == 2)
            verifier.doorkeeper.replace(door_config(keys={"bob": [BOB]}))
            error, closed = await closing(gone)
            assert error.code is ErrorCode.UNAUTHORIZED
            assert "no longer valid" in error.message
            assert "1008" in closed
            target.let_go()
            assert (await wait_for(staying)).token_ids == reference_tokens(target, [4, 2], 20)
        assert (await knock(verifier, headers=bearer(ALICE))).status == 401
        await target.until(lambda: len(target.closed) == 2)


async def test_a_removed_keys_calls_end() -> None:
    begun = asyncio.Event()

    async def wait_for_ever(call: Call) -> Reply:
        del call
        begun.set()
        await asyncio.Event().wait()
        return Reply()

    slow = Route(method="POST", path="/v1/slow", handler=wait_for_ever)
    async with guarded_verifier(KEYED, routes=[slow]) as verifier:
        call = asyncio.create_task(ask(verifier, "/v1/slow", method="POST", headers=bearer(ALICE), body=b"{}"))
        await wait_for(begun.wait())
        verifier.doorkeeper.replace(door_config(keys={"bob": [BOB]}))
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await wait_for(call)
        assert verifier.doorkeeper.connections == 0
        assert await generates(verifier, BOB)


AT_ONCE: dict[str, Any] = {"wait_when_busy": False}
"""Options of a client that does not wait where the verifier is busy."""


async def test_a_fault_of_ours_is_told_without_where_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Not even to those who debug asyncio: then aiohttp would send the traceback."""

    async def fail(call: Call) -> Reply:
        raise RuntimeError(f"a secret of {call.path}")

    asyncio.get_running_loop().set_debug(True)
    async with guarded_verifier(routes=[Route(method="GET", path="/broken", handler=fail)]) as verifier:
        answer = await ask(verifier, "/broken")
        assert answer.status == 500
        assert answer.json == {"error": "the verifier failed on this call; try again"}
        assert verifier.refused == ["internal"]
        assert "a secret of /broken" in caplog.text  # in the log, for the operator
        assert (await ask(verifier, "/healthz")).status == 200
