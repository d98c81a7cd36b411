"""The binary codec: one message, one frame. docs/protocol.md is the normative text of what is written here.

A frame's first byte holds the message type in its low nibble and that type's flags in its high nibble. Limits are
checked before what they limit is read.
"""

from __future__ import annotations

from .codes import FRAME_FLAGS, PROTOCOL_VERSION, MessageType
from .errors import ErrorCode, FrameTooLargeError, InvalidParameterError, MalformedFrameError, VersionMismatchError
from .fields import U32
from .frame_readers import READERS
from .frame_writers import write_message
from .messages import Draft, Hello, Limits, Message, Open, Welcome
from .wire import Reader

__all__ = ["MAX_HANDSHAKE_BYTES", "decode", "encode", "message_type"]

MAX_HANDSHAKE_BYTES = 4096
"""Longest frame while no limits are agreed yet."""

_TYPES = {int(kind): kind for kind in MessageType}
_HANDSHAKE = (MessageType.HELLO, MessageType.WELCOME)


def encode(message: Message, vocabulary_size: int | None = None, limits: Limits | None = None) -> bytes:
    """Write a message as one frame.

    Args:
        message: any message.
        vocabulary_size: as agreed in WELCOME; needed for OPEN, DRAFT and COMMIT.
        limits: as agreed in WELCOME; None before it.

    Raises:
        InvalidParameterError: a token id outside the vocabulary.
        FrameTooLargeError: the message is over a limit.
    """
    if limits is not None and isinstance(message, Draft):
        limits.check_draft(len(message.token_ids), message.stream)
    if limits is not None and isinstance(message, Open):
        limits.check_sequence(message.length, message.max_tokens, message.stream)
    frame = write_message(message, vocabulary_size)
    limit = MAX_HANDSHAKE_BYTES if limits is None or message.type in _HANDSHAKE else limits.max_message_bytes
    if len(frame) > limit:
        stream = None if isinstance(message, Hello | Welcome) else message.stream or None
        raise _too_large(message.type, len(frame), limit, stream)
    return frame


def message_type(frame: bytes) -> MessageType:
    """The type that a frame's first byte names.

    Raises:
        MalformedFrameError: an empty frame or an unknown type.
    """
    if not frame:
        raise MalformedFrameError("malformed frame: it is empty")
    kind = _TYPES.get(frame[0] & 0x0F)
    if kind is None:
        raise MalformedFrameError(f"malformed frame: type {frame[0] & 0x0F} is unknown")
    return kind


def decode(frame: bytes, vocabulary_size: int | None = None, limits: Limits | None = None) -> Message:
    """Read one frame, in time linear in its length.

    Args:
        frame: the payload of one binary WebSocket message.
        vocabulary_size, limits: as for :func:`encode`.

    Raises:
        ProtocolError: and nothing else; ``stream`` is set where the fault concerns one stream only. A value out of
            range has the code INVALID_PARAMETER, a sequence too long for the context PROMPT_TOO_LONG.
    """
    kind = message_type(frame)
    handshake = kind in _HANDSHAKE
    if handshake and len(frame) > 1 and frame[1] != PROTOCOL_VERSION:
        raise VersionMismatchError(
            f"the other end speaks protocol version {frame[1]}, this end speaks {PROTOCOL_VERSION}; "
            "upgrade the older of the two"
        )
    reader = Reader(frame, vocabulary_size)
    flags = reader.u8() & 0xF0
    if not handshake:
        stream = reader.varint()
        if stream >= U32:
            raise reader.malformed(f"a stream id of {stream}")
        reader.stream = stream or None
        if not stream and kind is not MessageType.ERROR:
            raise reader.malformed("stream 0 is the connection, which only ERROR may name")
    limit = MAX_HANDSHAKE_BYTES if limits is None or handshake else limits.max_message_bytes
    if len(frame) > limit:
        raise _too_large(kind, len(frame), limit, reader.stream)
    if flags & ~FRAME_FLAGS[kind]:
        raise reader.malformed(f"unknown flags {flags & ~FRAME_FLAGS[kind]:#04x} in {kind.name}")
    try:
        message = READERS[kind](reader, flags, limits)
    except InvalidParameterError as error:
        refusal = MalformedFrameError(f"{kind.name} refused: {error}", stream=reader.stream)
        refusal.code = ErrorCode.INVALID_PARAMETER
        raise refusal from None
    reader.finish()
    return message


def _too_large(kind: MessageType, size: int, limit: int, stream: int | None) -> FrameTooLargeError:
    return FrameTooLargeError(f"{kind.name} of {size} bytes; at most {limit} are allowed", stream=stream)
