"""Writer and reader of the wire's primitives: little-endian numbers, varints, strings, packed token ids.

The reader never looks past the end of its frame and never makes room for what is not there: every count is held
against the bytes that remain before anything is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from .bitpack import id_width, pack_ids, packed_size, unpack_ids
from .errors import IllegalMessageError, InvalidParameterError, MalformedFrameError

__all__ = ["MAX_VARINT_BYTES", "Reader", "Writer"]

MAX_VARINT_BYTES = 10

_F64 = struct.Struct("<d")


class Writer:
    """Appends primitives to a frame. Fields have been checked by the message that holds them."""

    __slots__ = ("_frame", "_vocabulary_size")

    def __init__(self, first_byte: int, vocabulary_size: int | None = None) -> None:
        self._frame = bytearray((first_byte,))
        self._vocabulary_size = vocabulary_size

    def frame(self) -> bytes:
        """The finished frame."""
        return bytes(self._frame)

    def raw(self, content: bytes) -> None:
        """Bytes as they are."""
        self._frame += content

    def u8(self, value: int) -> None:
        """One byte."""
        self._frame.append(value)

    def u16(self, value: int) -> None:
        """Two bytes, little-endian."""
        self._frame += value.to_bytes(2, "little")

    def u64(self, value: int) -> None:
        """Eight bytes, little-endian."""
        self._frame += value.to_bytes(8, "little")

    def f64(self, value: float) -> None:
        """IEEE 754 binary64, little-endian: both ends compute with the very same number."""
        self._frame += _F64.pack(value)

    def varint(self, value: int) -> None:
        """Unsigned LEB128: seven bits a byte, least significant first, the high bit set on all but the last."""
        frame = self._frame
        while value > 0x7F:
            frame.append(value & 0x7F | 0x80)
            value >>= 7
        frame.append(value)

    def text(self, value: str) -> None:
        """Length in bytes as a varint, then UTF-8."""
        encoded = value.encode("utf-8")
        self.varint(len(encoded))
        self._frame += encoded

    def ids(self, field: str, ids: Sequence[int]) -> None:
        """Token ids, packed; their count is written elsewhere.

        Raises:
            InvalidParameterError: an id outside the vocabulary, or no vocabulary agreed yet.
        """
        if self._vocabulary_size is None:
            raise InvalidParameterError(field, "cannot be encoded before the handshake has agreed on a vocabulary")
        if ids and max(ids) >= self._vocabulary_size:
            raise InvalidParameterError(
                field, f"token id {max(ids)} is outside the vocabulary of {self._vocabulary_size} tokens"
            )
        self._frame += pack_ids(ids, id_width(self._vocabulary_size))


class Reader:
    """Takes primitives off a frame; every failure is a MalformedFrameError for ``stream``, once that is known."""

    __slots__ = ("_end", "_frame", "_position", "stream", "vocabulary_size")

    def __init__(self, frame: bytes, vocabulary_size: int | None = None) -> None:
        self._frame = frame
        self._position = 0
        self._end = len(frame)
        self.vocabulary_size = vocabulary_size
        self.stream: int | None = None

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return self._end - self._position

    def malformed(self, problem: str) -> MalformedFrameError:
        """The error to raise for ``problem``."""
        return MalformedFrameError(f"malformed frame: {problem}", stream=self.stream)

    def finish(self) -> None:
        """Check that nothing is left over."""
        if self.remaining:
            raise self.malformed(f"{self.remaining} bytes left over at its end")

    def raw(self, size: int) -> bytes:
        """The next ``size`` bytes."""
        start = self._position
        if size > self._end - start:
            raise self.malformed("it is cut short")
        self._position = start + size
        return self._frame[start : self._position]

    def u8(self) -> int:
        """One byte."""
        return self.raw(1)[0]

    def u16(self) -> int:
        """Two bytes, little-endian."""
        return int.from_bytes(self.raw(2), "little")

    def u64(self) -> int:
        """Eight bytes, little-endian."""
        return int.from_bytes(self.raw(8), "little")

    def f64(self) -> float:
        """IEEE 754 binary64, little-endian."""
        value: float = _F64.unpack(self.raw(8))[0]
        return value

    def varint(self) -> int:
        """Unsigned LEB128 in its one shortest form, below 2 ** 64."""
        value = shift = 0
        for index in range(MAX_VARINT_BYTES):
            position = self._position
            if position >= self._end:
                raise self.malformed("it is cut short")
            byte = self._frame[position]
            self._position = position + 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if index and not byte:
                    raise self.malformed("a varint is longer than it need be")
                if value >> 64:
                    break
                return value
            shift += 7
        raise self.malformed("a varint is over 64 bits")

    def text(self, limit: int) -> str:
        """A string of at most ``limit`` bytes of UTF-8."""
        size = self.varint()
        if size > limit:
            raise self.malformed(f"a text of {size} bytes, at most {limit} are allowed")
        try:
            return self.raw(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.malformed("a text that is not UTF-8") from None

    def ids(self, count: int) -> tuple[int, ...]:
        """``count`` packed token ids, each inside the vocabulary."""
        if self.vocabulary_size is None:
            raise IllegalMessageError("token ids before the handshake has agreed on a vocabulary", stream=self.stream)
        width = id_width(self.vocabulary_size)
        packed = self.raw(packed_size(count, width))
        try:
            ids = unpack_ids(packed, count, width)
        except ValueError as error:
            raise self.malformed(str(error)) from None
        if ids and max(ids) >= self.vocabulary_size:
            raise self.malformed(f"token id {max(ids)} is outside the vocabulary of {self.vocabulary_size} tokens")
        return ids
