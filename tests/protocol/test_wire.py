from __future__ import annotations

import math

import pytest
from draftwire.protocol.errors import IllegalMessageError, InvalidParameterError, MalformedFrameError
from draftwire.protocol.wire import Reader, Writer
from hypothesis import given
from hypothesis import strategies as st


def written(method: str, value: object) -> bytes:
    writer = Writer(0xAA)
    getattr(writer, method)(value)
    return writer.frame()[1:]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8001"),
        (300, "ac02"),
        (16383, "ff7f"),
        (16384, "808001"),
        ((1 << 64) - 1, "ffffffffffffffffff01"),
    ],
)
def test_varint_bytes(value: int, expected: str) -> None:
    assert written("varint", value).hex() == expected
    assert Reader(bytes.fromhex(expected)).varint() == value


@given(st.integers(0, (1 << 64) - 1))
def test_varint_round_trip(value: int) -> None:
    frame = written("varint", value)
    reader = Reader(frame)
    assert reader.varint() == value
    reader.finish()
    assert len(frame) <= 10


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "cut short"),
        ("80", "cut short"),
        ("8000", "longer than it need be"),
        ("ff00", "longer than it need be"),
        ("ffffffffffffffffff02", "over 64 bits"),
        ("ffffffffffffffffffff01", "over 64 bits"),
    ],
)
def test_varint_refuses(content: str, problem: str) -> None:
    with pytest.raises(MalformedFrameError, match=problem):
        Reader(bytes.fromhex(content)).varint()


def test_a_long_run_of_continuation_bytes_is_given_up_after_ten() -> None:
    reader = Reader(b"\xff" * 1_000_000)
    with pytest.raises(MalformedFrameError):
        reader.varint()
    assert reader.remaining == 1_000_000 - 10


@pytest.mark.parametrize(
    ("method", "value", "expected"),
    [
        ("u8", 0xFE, "fe"),
        ("u16", 0x1234, "3412"),
        ("u64", 0x0102030405060708, "0807060504030201"),
        ("f64", 1.0, "000000000000f03f"),
        ("f64", 0.7, "666666666666e63f"),
    ],
)
def test_fixed_numbers_are_little_endian(method: str, value: float, expected: str) -> None:
    assert written(method, value).hex() == expected
    assert getattr(Reader(bytes.fromhex(expected)), method)() == value


@given(st.floats())
def test_f64_is_exact(value: float) -> None:
    back = Reader(written("f64", value)).f64()
    assert back == value or (math.isnan(back) and math.isnan(value))


@given(st.text(max_size=40))
def test_text_round_trip(value: str) -> None:
    assert Reader(written("text", value)).text(400) == value


@pytest.mark.parametrize(
    ("content", "problem"),
    [("0561", "cut short"), ("02c328", "not UTF-8"), ("03eda080", "not UTF-8"), ("ff01", "at most 64")],
)
def test_text_refuses(content: str, problem: str) -> None:
    with pytest.raises(MalformedFrameError, match=problem):
        Reader(bytes.fromhex(content)).text(64)


def test_a_count_beyond_the_frame_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(MalformedFrameError, match="cut short"):
        Reader(b"\x00" * 8, 50_000).ids(1 << 60)


def test_an_id_at_the_vocabulary_size_is_refused_at_both_ends() -> None:
    writer = Writer(0, 49152)
    with pytest.raises(InvalidParameterError, match="token_ids: token id 49152 is outside the vocabulary of 49152"):
        writer.ids("token_ids", (49152,))
    with pytest.raises(MalformedFrameError, match="49152 is outside"):
        Reader((49152).to_bytes(2, "little"), 49152).ids(1)
    assert Reader((49151).to_bytes(2, "little"), 49152).ids(1) == (49151,)


def test_ids_need_a_vocabulary() -> None:
    with pytest.raises(IllegalMessageError, match="handshake"):
        Reader(b"\x00\x00").ids(1)
    with pytest.raises(InvalidParameterError, match="handshake"):
        Writer(0).ids("token", (1,))


def test_errors_name_the_stream_once_it_is_known() -> None:
    reader = Reader(b"\x01")
    assert reader.malformed("x").stream is None
    reader.stream = reader.varint()
    with pytest.raises(MalformedFrameError) as caught:
        reader.u8()
    assert caught.value.stream == 1


def test_leftover_bytes_are_refused() -> None:
    with pytest.raises(MalformedFrameError, match="2 bytes left over"):
        Reader(b"\x00\x00").finish()
