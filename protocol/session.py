"""The sans-I/O core of a connection: messages in, bytes out; bytes in, messages out; nothing waits.

One state machine serves both roles. A message moves it the same way whether it is sent or received, so the two ends
of a connection walk through the same states; :data:`MESSAGE_SENDER` says whose move each message is.

**The connection** starts NEW. HELLO makes it GREETED and WELCOME makes it READY; from then on both ends know the
vocabulary size and the limits that frames are read with, and messages on streams may flow. ERROR for the connection
(stream 0) closes it from any state. When an end receives what breaks the protocol for the whole connection, it is
FAILED: it hears nothing more, and a verifier has one ERROR left to say why.

**A stream** begins with OPEN. The client need not wait for OPENED: it may already send DRAFT, or CANCEL. OPENED makes
the stream OPEN, and COMMITs follow until END or ERROR, which the verifier always has the last word with. CANCEL asks
for END; OPENED and COMMIT that were on their way meanwhile still count, for committed tokens are final.

**Messages that cross.** While END or ERROR travels to the client, the client may still send DRAFT or CANCEL. They
reach a stream that is over, and are dropped without a word.

**Faults.** An error with ``stream`` set concerns that stream alone: a verifier answers with ERROR for it, a client
with CANCEL, and every other stream goes on. An error without one concerns the connection.
"""

from __future__ import annotations

from enum import Enum, unique

from .codes import MESSAGE_SENDER, NO_CAPABILITIES, Capability, MessageType, Role
from .errors import ErrorCode, IllegalMessageError, MalformedFrameError, ProtocolError
from .frames import decode, encode, message_type
from .messages import Draft, Error, Hello, Limits, Message, Open, StreamMessage, Welcome

__all__ = ["CONNECTION_TABLE", "STREAM_TABLE", "ConnectionState", "Role", "Session", "StreamState"]


@unique
class ConnectionState(Enum):
    """Where a connection is."""

    NEW = "new"
    GREETED = "greeted"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


@unique
class StreamState(Enum):
    """Where a stream is. UNUSED ids are above the highest opened one; ENDED ids are not kept one by one."""

    UNUSED = "unused"
    OPENING = "opening"
    OPEN = "open"
    CANCELLING = "cancelling"
    ENDED = "ended"


CONNECTION_TABLE: dict[tuple[ConnectionState, MessageType], ConnectionState] = {
    (ConnectionState.NEW, MessageType.HELLO): ConnectionState.GREETED,
    (ConnectionState.NEW, MessageType.ERROR): ConnectionState.CLOSED,
    (ConnectionState.GREETED, MessageType.WELCOME): ConnectionState.READY,
    (ConnectionState.GREETED, MessageType.ERROR): ConnectionState.CLOSED,
    (ConnectionState.READY, MessageType.ERROR): ConnectionState.CLOSED,
    (ConnectionState.FAILED, MessageType.ERROR): ConnectionState.CLOSED,
}
"""Messages without a stream, ERROR for stream 0 among them. What is not here is illegal."""

STREAM_TABLE: dict[tuple[StreamState, MessageType], StreamState] = {
    (StreamState.UNUSED, MessageType.OPEN): StreamState.OPENING,
    (StreamState.OPENING, MessageType.DRAFT): StreamState.OPENING,
    (StreamState.OPENING, MessageType.CANCEL): StreamState.CANCELLING,
    (StreamState.OPENING, MessageType.OPENED): StreamState.OPEN,
    (StreamState.OPENING, MessageType.ERROR): StreamState.ENDED,
    (StreamState.OPEN, MessageType.DRAFT): StreamState.OPEN,
    (StreamState.OPEN, MessageType.COMMIT): StreamState.OPEN,
    (StreamState.OPEN, MessageType.CANCEL): StreamState.CANCELLING,
    (StreamState.OPEN, MessageType.END): StreamState.ENDED,
    (StreamState.OPEN, MessageType.ERROR): StreamState.ENDED,
    (StreamState.CANCELLING, MessageType.OPENED): StreamState.CANCELLING,
    (StreamState.CANCELLING, MessageType.COMMIT): StreamState.CANCELLING,
    (StreamState.CANCELLING, MessageType.END): StreamState.ENDED,
    (StreamState.CANCELLING, MessageType.ERROR): StreamState.ENDED,
}
"""Messages on a stream of a READY connection. What is not here is illegal."""

_CROSSING = frozenset({MessageType.DRAFT, MessageType.CANCEL})
"""Received on an ENDED stream, these were on their way when it ended; they are ignored."""

_DEAF = frozenset({ConnectionState.FAILED, ConnectionState.CLOSED})


class Session:
    """One end of one connection.

    Attributes:
        role: which end.
        hello, welcome: the handshake's messages, once they have passed.
    """

    def __init__(self, role: Role) -> None:
        self.role = role
        self.hello: Hello | None = None
        self.welcome: Welcome | None = None
        self._state = ConnectionState.NEW
        self._streams: dict[int, StreamState] = {}  # those that have not ended
        self._by_rejection: set[int] = set()  # of those, the ones whose drafts must carry sparse_q
        self._highest = 0
        self._vocabulary_size: int | None = None
        self._limits: Limits | None = None
        self._capabilities = NO_CAPABILITIES

    # --- what is agreed, and where things are ---

    @property
    def state(self) -> ConnectionState:
        """Where the connection is."""
        return self._state

    @property
    def limits(self) -> Limits | None:
        """The limits in force; None before WELCOME."""
        return self._limits

    @property
    def vocabulary_size(self) -> int | None:
        """Token ids are below it; None before WELCOME."""
        return self._vocabulary_size

    @property
    def capabilities(self) -> Capability:
        """What both ends can do; nothing before WELCOME."""
        return self._capabilities

    @property
    def drafting_allowed(self) -> bool:
        """Whether draft and target share a vocabulary."""
        if self.hello is None or self.welcome is None:
            return False
        return self.hello.fingerprint == self.welcome.fingerprint

    @property
    def next_stream(self) -> int:
        """The id that the next OPEN must carry."""
        return self._highest + 1

    @property
    def live_streams(self) -> tuple[int, ...]:
        """Ids of the streams that have not ended."""
        return tuple(self._streams)

    def stream_state(self, stream: int) -> StreamState:
        """Where a stream is."""
        state = self._streams.get(stream)
        if state is not None:
            return state
        return StreamState.ENDED if 1 <= stream <= self._highest else StreamState.UNUSED

    def close(self) -> None:
        """The transport is gone: no stream lives on."""
        self._state = ConnectionState.CLOSED
        self._streams.clear()
        self._by_rejection.clear()

    # --- sending and receiving ---

    def send(self, message: Message) -> bytes:
        """Account for a message and return the frame to put on the wire.

        Raises:
            IllegalMessageError: the message is not this role's, not allowed now, or not agreed.
            FrameTooLargeError, InvalidParameterError: from :func:`encode`. Nothing has changed when this raises.
        """
        kind = message.type
        if MESSAGE_SENDER[kind] is not self.role:
            raise IllegalMessageError(f"{kind.name} is not the {self.role.value}'s to send")
        if isinstance(message, Hello | Welcome) or message.stream == 0:
            self._connection_after(kind)
        else:
            self._stream_after(message)
            self._check_agreed(message)
        frame = encode(message, self._vocabulary_size, self._limits)
        self._apply(message)
        return frame

    def receive(self, data: bytes | str) -> list[Message]:
        """Take the payload of one WebSocket message.

        Returns:
            The message in it; nothing where it is to be ignored.

        Raises:
            ProtocolError: with ``stream`` set where one stream is concerned, which stays where it is until ERROR or
                CANCEL is sent for it. Without, the session is FAILED.
        """
        if self._state in _DEAF:
            return []
        try:
            return self._receive(data)
        except ProtocolError as error:
            if error.stream is None:
                self._state = ConnectionState.FAILED
            raise

    def _receive(self, data: bytes | str) -> list[Message]:
        if isinstance(data, str):
            raise MalformedFrameError("malformed frame: a text message; every frame is a binary one")
        kind = message_type(data)
        if MESSAGE_SENDER[kind] is self.role:
            raise IllegalMessageError(f"{kind.name} is not the {self.role.peer.value}'s to send")
        if self._state is not ConnectionState.READY:
            self._connection_after(kind)  # before anything is read with a vocabulary and limits not agreed yet
        try:
            message = decode(data, self._vocabulary_size, self._limits)
        except ProtocolError as error:
            if self._blame(kind, error):
                raise
            return []
        if isinstance(message, Hello | Welcome) or message.stream == 0:
            self._connection_after(kind)
            self._apply(message)
            return [message]
        if self._crossed(kind, message.stream):
            return []
        self._stream_after(message)
        if kind is MessageType.OPEN:
            self._apply(message)  # the id is taken, and ERROR may name it, whatever is wrong with the rest
        self._check_agreed(message)
        if kind is not MessageType.OPEN:
            self._apply(message)
        return [message]

    # --- rules ---

    def _crossed(self, kind: MessageType, stream: int) -> bool:
        return kind in _CROSSING and self.stream_state(stream) is StreamState.ENDED

    def _blame(self, kind: MessageType, error: ProtocolError) -> bool:
        """Decide whom an undecodable frame concerns; False where it is to be ignored."""
        stream = error.stream
        if stream is None:
            return True
        if self._crossed(kind, stream):
            return False
        opening = kind is MessageType.OPEN
        if opening and self._state is ConnectionState.READY and stream == self.next_stream:
            self._highest = stream
            self._streams[stream] = StreamState.OPENING
        elif opening or stream not in self._streams:
            error.stream = None
        return True

    def _connection_after(self, kind: MessageType) -> ConnectionState:
        state = CONNECTION_TABLE.get((self._state, kind))
        if state is None:
            raise IllegalMessageError(f"{kind.name} is not allowed while the connection is {self._state.value}")
        return state

    def _stream_after(self, message: StreamMessage) -> StreamState:
        """The state that a message moves its stream to; the stream id is not 0."""
        kind, stream = message.type, message.stream
        if self._state is not ConnectionState.READY:
            raise IllegalMessageError(f"{kind.name} is not allowed while the connection is {self._state.value}")
        if kind is MessageType.OPEN and stream != self.next_stream:
            raise IllegalMessageError(f"OPEN for stream {stream}; the next stream is {self.next_stream}")
        before = self.stream_state(stream)
        after = STREAM_TABLE.get((before, kind))
        if after is None:
            raise IllegalMessageError(
                f"{kind.name} is not allowed while stream {stream} is {before.value}",
                stream=stream if stream in self._streams else None,
            )
        return after

    def _check_agreed(self, message: StreamMessage) -> None:
        """Refuse what the handshake has not agreed on."""
        if isinstance(message, Draft):
            self._check_draft(message)
        elif isinstance(message, Open):
            self._check_open(message)

    def _check_open(self, message: Open) -> None:
        others = len(self._streams) - (message.stream in self._streams)
        if self._limits is not None and others >= self._limits.max_streams:
            raise _refusal(
                message, f"{others} streams are open; at most {self._limits.max_streams} are allowed", ErrorCode.BUSY
            )
        if message.prefix is not None or message.retain:
            self._check_capability(message, Capability.PREFIXES)
        if message.drafting:
            self._check_vocabulary(message)

    def _check_draft(self, message: Draft) -> None:
        self._check_vocabulary(message)
        if message.parents is not None:
            self._check_capability(message, Capability.TREES)
        if message.source:
            self._check_capability(message, Capability.SOURCES)
        if message.sparse_q is not None:
            self._check_capability(message, Capability.SPARSE_Q)
        if (message.sparse_q is not None) is not (message.stream in self._by_rejection):
            raise _refusal(message, "sparse_q must come with drafts for a stream in rejection mode, and with no others")

    def _check_capability(self, message: StreamMessage, needed: Capability) -> None:
        if needed not in self._capabilities:
            raise _refusal(message, f"{needed.name} is not agreed on this connection")

    def _check_vocabulary(self, message: StreamMessage) -> None:
        if not self.drafting_allowed:
            raise _refusal(
                message, "draft and target do not share a vocabulary; do not draft", ErrorCode.FINGERPRINT_MISMATCH
            )

    def _apply(self, message: Message) -> None:
        """Move to where a legal message leads."""
        if isinstance(message, Hello):
            self._state = self._connection_after(message.type)
            self.hello = message
        elif isinstance(message, Welcome):
            self._state = self._connection_after(message.type)
            self.welcome = message
            self._vocabulary_size, self._limits = message.vocabulary_size, message.limits
            if self.hello is not None:
                self._capabilities = self.hello.capabilities & message.capabilities
        elif isinstance(message, Error) and message.stream == 0:
            self.close()
        else:
            self._apply_to_stream(message)

    def _apply_to_stream(self, message: StreamMessage) -> None:
        stream, after = message.stream, self._stream_after(message)
        if after is StreamState.ENDED:
            del self._streams[stream]
            self._by_rejection.discard(stream)
            return
        self._streams[stream] = after
        if isinstance(message, Open):
            self._highest = stream
            if message.params.by_rejection:
                self._by_rejection.add(stream)


def _refusal(message: StreamMessage, problem: str, code: ErrorCode = ErrorCode.ILLEGAL_MESSAGE) -> IllegalMessageError:
    error = IllegalMessageError(f"{message.type.name} refused: {problem}", stream=message.stream)
    error.code = code
    return error
