"""A connection whose transport fails, and one that its verifier gives up: who is told, and what it is good for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from draftwire.edge_client.connection import VerifierConnection, stream_error
from draftwire.protocol.codes import Role
from draftwire.protocol.errors import AuthenticationError, ConnectionLostError, ErrorCode, StreamError
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Cancel, Commit, Error, Hello, Limits, Open, Opened, Welcome
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import Session

WELCOME = Welcome(
    fingerprint=bytes(16),
    target="fake",
    vocabulary_size=24,
    eos_ids=(0,),
    limits=Limits(max_context=100, max_streams=4, max_message_bytes=4096, max_draft_tokens=8, max_backlog=8),
)


class FakeTransport:
    """A socket whose two directions fail one by one."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | ConnectionLostError] = asyncio.Queue()
        self.deaf = False
        self.sent = 0

    async def send(self, _: bytes) -> None:
        if self.deaf:
            raise ConnectionLostError("the connection broke off")
        self.sent += 1

    async def receive(self) -> bytes:
        item = await self.incoming.get()
        if isinstance(item, ConnectionLostError):
            raise item
        return item

    async def close(self) -> None:
        self.incoming.put_nowait(ConnectionLostError("the connection closed"))


class Ends:
    """Both ends of a connection after its handshake."""

    def __init__(self) -> None:
        self.transport = FakeTransport()
        mine, self.verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
        self.verifier.receive(mine.send(Hello()))
        mine.receive(self.verifier.send(WELCOME))
        self.connection = VerifierConnection(self.transport, mine, WELCOME, url="ws://fake")  # type: ignore[arg-type]

    def says(self, message: Any) -> None:
        self.transport.incoming.put_nowait(self.verifier.send(message))


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    both = Ends()
    yield both
    await both.connection.close()


def opening(stream: int) -> Open:
    return Open(stream=stream, token_ids=(1, 2), prompt_length=2, params=SamplingParams(), max_tokens=5, seed=0)


async def opened(ends: Ends) -> Any:
    channel = await ends.connection.open_stream(opening)
    ends.verifier.receive(encode(opening(channel.stream), WELCOME.vocabulary_size, WELCOME.limits))
    ends.says(Opened(stream=channel.stream))
    return channel


async def test_a_connection_that_cannot_send_is_given_to_nobody_else(ends: Ends) -> None:
    """Though its reader has not noticed yet, and may still bring what arrived before."""
    channel = await opened(ends)
    assert ends.connection.usable
    ends.transport.deaf = True
    with pytest.raises(ConnectionLostError):
        await channel.send(Cancel(stream=channel.stream))
    assert not ends.connection.usable
    assert not ends.connection.ended
    assert isinstance((await channel.receive())[0], Opened)


async def test_a_stream_that_could_not_be_opened_hears_nothing(ends: Ends) -> None:
    ends.transport.deaf = True
    with pytest.raises(ConnectionLostError):
        await ends.connection.open_stream(opening)
    assert not ends.connection.usable
    assert ends.connection._channels == {}


async def test_a_retired_connection_still_serves_its_streams(ends: Ends) -> None:
    channel = await opened(ends)
    ends.connection.retire()
    assert not ends.connection.usable
    ends.says(Commit(stream=channel.stream, path=0, accepted=0, token=7))
    assert isinstance((await channel.receive())[0], Opened)
    assert isinstance((await channel.receive())[0], Commit)


async def test_it_has_served_once_a_token_was_committed(ends: Ends) -> None:
    channel = await opened(ends)
    await channel.receive()
    assert not ends.connection.served
    ends.says(Commit(stream=channel.stream, path=0, accepted=0, token=7))
    await channel.receive()
    assert ends.connection.served


async def test_what_ends_a_connection_is_a_loss_to_whoever_sends(ends: Ends) -> None:
    """Drafting ends with it in silence: the stream itself is told why."""
    channel = await opened(ends)
    ends.says(Error(stream=0, code=ErrorCode.SHUTTING_DOWN, message="going"))
    await channel.receive()
    with pytest.raises(StreamError, match="going") as caught:
        await channel.receive()
    assert caught.value.code is ErrorCode.SHUTTING_DOWN
    assert ends.connection.ended
    with pytest.raises(ConnectionLostError, match="going"):
        await channel.send(Cancel(stream=channel.stream))
    with pytest.raises(ConnectionLostError, match="going"):
        await ends.connection.open_stream(opening)


def test_a_key_that_is_refused_later_is_a_key_that_is_refused() -> None:
    error = stream_error(Error(stream=0, code=ErrorCode.UNAUTHORIZED, message="not any more"))
    assert isinstance(error, AuthenticationError)
    assert not error.retryable


async def test_an_interrupt_while_it_closes_is_not_lost(ends: Ends) -> None:
    closing = asyncio.create_task(ends.connection.close())
    await asyncio.sleep(0)  # it waits for its reader, which it has cancelled
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert ends.transport.incoming.qsize() == 1  # the socket was closed all the same
