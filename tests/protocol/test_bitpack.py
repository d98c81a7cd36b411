from __future__ import annotations

import pytest
from draftwire.protocol.bitpack import id_width, pack_ids, packed_size, unpack_ids
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("vocabulary_size", "width"),
    [(2, 1), (3, 2), (4, 2), (5, 3), (256, 8), (257, 9), (49152, 16), (65536, 16), (65537, 17), (151936, 18)],
)
def test_width_is_ceil_log2(vocabulary_size: int, width: int) -> None:
    assert id_width(vocabulary_size) == width


@pytest.mark.parametrize(
    ("ids", "width", "expected"),
    [
        ((), 16, ""),
        ((1,), 1, "01"),
        ((1, 0, 1), 1, "05"),
        ((5, 2, 7), 3, "d501"),  # 101 010 111, least significant bit first
        ((0x1234, 0xABCD), 16, "3412cdab"),
        ((131071, 0, 1), 17, "ffff01000400 00".replace(" ", "")),
        ((0,) * 8 + (1,), 5, "0000000000" + "01"),
    ],
)
def test_bytes(ids: tuple[int, ...], width: int, expected: str) -> None:
    assert pack_ids(ids, width).hex() == expected
    assert unpack_ids(bytes.fromhex(expected), len(ids), width) == ids


@given(st.data(), st.integers(1, 31))
def test_round_trip_against_one_big_integer(data: st.DataObject, width: int) -> None:
    ids = tuple(data.draw(st.lists(st.integers(0, (1 << width) - 1), max_size=40)))
    packed = pack_ids(ids, width)
    whole = sum(token << (index * width) for index, token in enumerate(ids))
    assert packed == whole.to_bytes(packed_size(len(ids), width), "little")
    assert unpack_ids(packed, len(ids), width) == ids


@given(st.integers(1, 31), st.integers(1, 40), st.data())
def test_every_padding_bit_must_be_zero(width: int, count: int, data: st.DataObject) -> None:
    size = packed_size(count, width)
    padding = size * 8 - count * width
    if not padding:
        return
    bit = data.draw(st.integers(size * 8 - padding, size * 8 - 1))
    packed = (1 << bit).to_bytes(size, "little")
    with pytest.raises(ValueError, match="padding"):
        unpack_ids(packed, count, width)
