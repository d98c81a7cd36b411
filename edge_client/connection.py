"""One connection to a verifier, shared by any number of streams."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Self

from ..protocol.codes import PROTOCOL_VERSION, Capability, Role
from ..protocol.errors import (
    AuthenticationError,
    BusyError,
    ConnectionLostError,
    DraftwireError,
    ErrorCode,
    IllegalMessageError,
    InternalVerifierError,
    PromptTooLongError,
    ProtocolError,
    StreamError,
    UnknownPrefixError,
    VersionMismatchError,
)
from ..protocol.messages import Cancel, Commit, End, Error, Hello, Message, Open, Opened, Welcome
from ..protocol.session import Session, StreamState
from .transport import Transport, frame_bytes

__all__ = ["Channel", "VerifierConnection", "stream_error"]

CAPABILITIES = Capability.SPARSE_Q | Capability.PREFIXES

_ERRORS: dict[ErrorCode, type[StreamError]] = {
    ErrorCode.PROMPT_TOO_LONG: PromptTooLongError,
    ErrorCode.UNKNOWN_PREFIX: UnknownPrefixError,
    ErrorCode.BUSY: BusyError,
    ErrorCode.INTERNAL: InternalVerifierError,
    ErrorCode.NON_FINITE_LOGITS: InternalVerifierError,
}

Received = tuple[Opened | Commit | End | Error, int]


def stream_error(error: Error) -> DraftwireError:
    """The exception for an ERROR frame."""
    if error.code is ErrorCode.VERSION_MISMATCH:
        return VersionMismatchError(error.message)
    if error.code is ErrorCode.UNAUTHORIZED:
        return AuthenticationError(error.message)
    retry_after = None if error.retry_after_ms is None else error.retry_after_ms / 1000
    return _ERRORS.get(error.code, StreamError)(error.message, code=error.code, retry_after=retry_after)


class Channel:
    """One stream's share of the connection: its messages, each with the bytes its frame took."""

    def __init__(self, connection: VerifierConnection, stream: int) -> None:
        self.stream = stream
        self._connection = connection
        self._received: asyncio.Queue[Received | DraftwireError] = asyncio.Queue()

    @property
    def live(self) -> bool:
        """Whether the verifier has not ended the stream yet; it may have, though its END is still to be received."""
        return self._connection.is_live(self.stream)

    async def send(self, message: Message) -> int:
        """Send a message of this stream. Returns the bytes of its frame."""
        return await self._connection.send(message)

    async def receive(self) -> Received:
        """The next message; raises what ended the connection once everything before it was taken."""
        item = await self._received.get()
        if isinstance(item, DraftwireError):
            self._received.put_nowait(item)
            raise item
        return item

    def put(self, item: Received | DraftwireError) -> None:
        """Called by the connection."""
        self._received.put_nowait(item)

    def close(self) -> None:
        """Hear nothing more."""
        self._connection.forget(self.stream)


class VerifierConnection:
    """A connection after its handshake.

    Attributes:
        url: where it leads.
        welcome: what the verifier said of itself.
        served: whether a token has been committed on it, which is more than to have connected.
    """

    def __init__(self, transport: Transport, session: Session, welcome: Welcome, *, url: str = "") -> None:
        self.url = url
        self.welcome = welcome
        self.served = False
        self._retired = False
        self._transport = transport
        self._session = session
        self._channels: dict[int, Channel] = {}
        self._failure: DraftwireError | None = None
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def connect(
        cls,
        url: str,
        *,
        fingerprint: bytes | None,
        agent: str,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> Self:
        """Connect and shake hands.

        Args:
            fingerprint: of the draft's vocabulary; None without a draft.
            agent: names the client in the verifier's logs.
            timeout: seconds for connecting, and again for the handshake.

        Raises:
            VerifierError, ProtocolError: see :meth:`.transport.Transport.connect`; and what the verifier answered.
        """
        transport = await Transport.connect(url, headers=headers, timeout=timeout)
        session = Session(Role.CLIENT)
        try:
            hello = Hello(version=PROTOCOL_VERSION, capabilities=CAPABILITIES, fingerprint=fingerprint, agent=agent)
            await transport.send(session.send(hello))
            async with asyncio.timeout(timeout):
                messages = session.receive(await transport.receive())
        except TimeoutError:
            await transport.close()
            raise ConnectionLostError(f"the verifier at {url} sent no WELCOME within {timeout:g} s") from None
        except BaseException:
            await transport.close()
            raise
        match messages:
            case [Welcome() as welcome]:
                return cls(transport, session, welcome, url=url)
            case [Error() as error]:
                await transport.close()
                raise stream_error(error)
        await transport.close()
        raise IllegalMessageError(f"the verifier at {url} did not answer the handshake")

    @property
    def usable(self) -> bool:
        """Whether new streams can be opened."""
        return self._failure is None and not self._retired

    @property
    def ended(self) -> bool:
        """Whether nothing can come any more."""
        return self._failure is not None

    def retire(self) -> None:
        """Open no more streams on it, as its verifier is going or gone; those that run may yet end well."""
        self._retired = True

    @property
    def drafting_allowed(self) -> bool:
        """Whether both ends share a vocabulary."""
        return self._session.drafting_allowed

    async def open_stream(self, make: Callable[[int], Open]) -> Channel:
        """Open a stream: ``make`` is given its id. The caller hears OPENED or ERROR on the channel.

        Raises:
            StreamError: a limit that the verifier has announced is exceeded, as if it had refused.
        """
        self._check()
        stream = self._session.next_stream
        try:
            frame = self._session.send(make(stream))
        except ProtocolError as error:
            raise stream_error(Error.of(stream, error)) from None
        channel = self._channels[stream] = Channel(self, stream)
        try:
            await self._transmit(frame)
        except asyncio.CancelledError:  # the frame may have left all the same
            channel.close()
            with contextlib.suppress(DraftwireError):
                await self.send(Cancel(stream=stream))
            raise
        except ConnectionLostError:
            channel.close()
            raise
        return channel

    async def send(self, message: Message) -> int:
        """Send one message. Returns the bytes of its frame."""
        self._check()
        data = self._session.send(message)
        await self._transmit(data)
        return frame_bytes(len(data), masked=True)

    def _check(self) -> None:
        if isinstance(self._failure, ConnectionLostError):
            raise self._failure
        if self._failure is not None:
            raise ConnectionLostError(f"the connection has ended ({self._failure})") from self._failure

    async def _transmit(self, frame: bytes) -> None:
        try:
            await self._transport.send(frame)
        except ConnectionLostError:
            self.retire()  # the reader has yet to take what arrived before the end, and then says so to every stream
            raise

    async def ping(self) -> float:
        """One round trip in seconds."""
        return await self._transport.ping()

    def is_live(self, stream: int) -> bool:
        """Whether a stream has not ended."""
        return self._session.stream_state(stream) is not StreamState.ENDED

    def forget(self, stream: int) -> None:
        """Drop a channel."""
        self._channels.pop(stream, None)

    async def close(self) -> None:
        """Close the connection; streams still open on it end with ConnectionLostError."""
        self._fail(ConnectionLostError("the client closed the connection"))
        self._reader.cancel()
        try:
            await asyncio.wait([self._reader])  # whose cancellation is not to be mistaken for our own
        finally:
            await self._transport.close()

    async def _read(self) -> None:
        try:
            while True:
                await self._read_one()
        except DraftwireError as error:
            self._fail(error)
            await self._transport.close()

    async def _read_one(self) -> None:
        data = await self._transport.receive()
        try:
            messages = self._session.receive(data)
        except ProtocolError as error:
            if error.stream is None:
                raise
            if (channel := self._channels.get(error.stream)) is not None:
                channel.put(error)
            return
        for message in messages:
            if isinstance(message, Error) and message.stream == 0:
                raise stream_error(message)
            if not isinstance(message, Opened | Commit | End | Error):  # the session lets nothing else through
                continue
            self.served = self.served or isinstance(message, Commit)
            if (channel := self._channels.get(message.stream)) is not None:
                channel.put((message, frame_bytes(len(data), masked=False)))

    def _fail(self, error: DraftwireError) -> None:
        if self._failure is None:
            self._failure = error
        for channel in self._channels.values():
            channel.put(self._failure)
