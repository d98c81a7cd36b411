"""Token ids packed at the width that the vocabulary needs, least significant bit first.

Bit ``k`` of id ``i`` is bit ``i * width + k`` of the block, and bit ``j`` of the block is bit ``j % 8`` of its byte
``j // 8``. The last byte is filled up with zero bits. Eight ids are always ``width`` whole bytes, so the work is done
in groups of eight: no big integer grows with the count, and the time is linear.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["id_width", "pack_ids", "packed_size", "unpack_ids"]


def id_width(vocabulary_size: int) -> int:
    """Bits for each id: ceil(log2(vocabulary_size)), for a vocabulary of two ids or more."""
    return (vocabulary_size - 1).bit_length()


def packed_size(count: int, width: int) -> int:
    """Bytes that ``count`` ids take."""
    return (count * width + 7) // 8


def pack_ids(ids: Sequence[int], width: int) -> bytes:
    """Pack ids, each below ``2 ** width``."""
    packed = bytearray()
    for first in range(0, len(ids), 8):
        group = ids[first : first + 8]
        bits = 0
        for index, token in enumerate(group):
            bits |= token << (index * width)
        packed += bits.to_bytes(packed_size(len(group), width), "little")
    return bytes(packed)


def unpack_ids(packed: bytes, count: int, width: int) -> tuple[int, ...]:
    """Undo :func:`pack_ids` on exactly ``packed_size(count, width)`` bytes.

    Raises:
        ValueError: a padding bit is not zero.
    """
    ids: list[int] = []
    mask = (1 << width) - 1
    position = 0
    for first in range(0, count, 8):
        size = min(8, count - first)
        end = position + packed_size(size, width)
        bits = int.from_bytes(packed[position:end], "little")
        for _ in range(size):
            ids.append(bits & mask)
            bits >>= width
        if bits:
            raise ValueError("padding bits that are not zero")
        position = end
    return tuple(ids)
