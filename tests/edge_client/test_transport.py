"""Which refusals and which ends of a connection are worth another try."""

from __future__ import annotations

import pytest
from draftwire.edge_client.transport import Transport, passes, seconds_of
from draftwire.protocol.errors import ConnectionLostError, VerifierRefusedError
from websockets.asyncio.server import ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
def test_a_state_that_passes(status: int) -> None:
    assert passes(status)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 410, 426])
def test_a_state_that_stays(status: int) -> None:
    assert not passes(status)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("0", 0.0), ("7", 7.0), (" 120 ", 120.0), (None, None), ("", None), ("-1", None), ("1.5", None), ("nan", None)],
)
def test_seconds_of_a_header(header: str | None, seconds: float | None) -> None:
    assert seconds_of(header) == seconds


def test_a_date_is_no_number_of_seconds() -> None:
    assert seconds_of("Wed, 21 Oct 2026 07:28:00 GMT") is None


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/wrong", "there is no verifier at the path /wrong of {url} (404); leave it out for /v1/verify"),
        ("/v1/verify/x", "there is no route 'x' at {url} (404); leave it out, or have the verifier set it up"),
        ("/v1/verify", "{url} is not a verifier (404); check host and port"),
    ],
)
async def test_an_address_that_is_not_there_says_which_part_is_wrong(path: str, advice: str) -> None:
    def nothing(socket: ServerConnection, _: Request) -> Response:
        return socket.respond(404, "")

    async def never(_: ServerConnection) -> None:
        raise AssertionError

    async with serve(never, "127.0.0.1", 0, process_request=nothing) as server:
        url = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}{path}"
        with pytest.raises(VerifierRefusedError) as caught:
            await Transport.connect(url)
    assert str(caught.value) == advice.format(url=url)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("code", "retryable"),
    [(1000, True), (1001, True), (1008, True), (1011, True), (1012, True), (1002, False), (1007, False), (1009, False)],
)
async def test_a_close_that_objects_to_what_was_said_is_final(code: int, retryable: bool) -> None:
    async def close(socket: ServerConnection) -> None:
        await socket.close(code, "so it is")

    async with serve(close, "127.0.0.1", 0, subprotocols=[Subprotocol("draftwire.v1")]) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with await Transport.connect(f"ws://127.0.0.1:{port}") as transport:
            with pytest.raises(ConnectionLostError, match=str(code)) as caught:
                await transport.receive()
    assert caught.value.retryable is retryable
