"""The codec's limits, checked at both ends before what they limit is read, and its size budget."""

from __future__ import annotations

import sys

import pytest
from draftwire.protocol.errors import (
    ErrorCode,
    FrameTooLargeError,
    InvalidParameterError,
    MalformedFrameError,
)
from draftwire.protocol.frames import MAX_HANDSHAKE_BYTES, decode, encode
from draftwire.protocol.messages import (
    Commit,
    Draft,
    Hello,
    Limits,
    Open,
    Prefix,
)
from draftwire.protocol.sampling import SamplingParams

VOCABULARY_SIZE = 49152
LIMITS = Limits(max_context=8192, max_streams=8, max_message_bytes=65536, max_draft_tokens=32, max_backlog=64)
LIMITS_WIDE = Limits(
    max_context=1 << 20, max_streams=1, max_message_bytes=1 << 24, max_draft_tokens=1 << 10, max_backlog=1 << 10
)

DRAFT = Draft(
    stream=300, path=5000, start=8000, token_ids=(1, 2, 3, 49151), confidences=(0, 16, 128, 255), sent_at=65535
)
COMMIT = Commit(stream=300, path=5000, accepted=4, token=49151, echo=65535, queued=80, computed=240)


def an_open(length: int, max_tokens: int = 1, prefix: Prefix | None = None) -> Open:
    return Open(
        stream=2,
        token_ids=(1,) * length,
        prompt_length=1,
        params=SamplingParams(),
        max_tokens=max_tokens,
        seed=0,
        prefix=prefix,
    )


def a_draft(length: int) -> Draft:
    return Draft(stream=2, path=1, start=1, token_ids=(1,) * length, confidences=(0,) * length, sent_at=0)


@pytest.mark.parametrize(
    "message",
    [an_open(11), an_open(1, 11), an_open(5, 6), an_open(1, 1, Prefix(stream=1, length=9))],
    ids=["prompt", "max_tokens", "both", "prefix"],
)
def test_a_sequence_beyond_the_context_is_refused_at_both_ends_with_the_limit(message: Open) -> None:
    limits = Limits(max_context=10, max_streams=1, max_message_bytes=4096, max_draft_tokens=4, max_backlog=8)
    frame = encode(message, VOCABULARY_SIZE)
    for attempt in (lambda: encode(message, VOCABULARY_SIZE, limits), lambda: decode(frame, VOCABULARY_SIZE, limits)):
        with pytest.raises(FrameTooLargeError, match="context of 10 tokens") as caught:
            attempt()
        assert (caught.value.code, caught.value.stream) == (ErrorCode.PROMPT_TOO_LONG, 2)


def test_what_just_fits_passes() -> None:
    limits = Limits(max_context=10, max_streams=1, max_message_bytes=1024, max_draft_tokens=4, max_backlog=8)
    for message in (an_open(5, 5), a_draft(4)):
        assert decode(encode(message, VOCABULARY_SIZE, limits), VOCABULARY_SIZE, limits) == message


def test_a_draft_over_the_limit_is_refused_at_both_ends_with_the_limit() -> None:
    message = a_draft(LIMITS.max_draft_tokens + 1)
    frame = encode(message, VOCABULARY_SIZE)
    with pytest.raises(FrameTooLargeError, match=f"at most {LIMITS.max_draft_tokens}"):
        encode(message, VOCABULARY_SIZE, LIMITS)
    with pytest.raises(FrameTooLargeError, match=f"at most {LIMITS.max_draft_tokens}") as caught:
        decode(frame, VOCABULARY_SIZE, LIMITS)
    assert caught.value.stream == 2


def test_a_frame_over_the_limit_is_refused_at_both_ends_for_its_stream() -> None:
    limits = Limits(max_context=9999, max_streams=1, max_message_bytes=1024, max_draft_tokens=4, max_backlog=8)
    message = an_open(1000)
    for attempt in (
        lambda: encode(message, VOCABULARY_SIZE, limits),
        lambda: decode(encode(message, VOCABULARY_SIZE), VOCABULARY_SIZE, limits),
    ):
        with pytest.raises(FrameTooLargeError, match=r"OPEN of 20.. bytes; at most 1024") as caught:
            attempt()
        assert (caught.value.code, caught.value.stream) == (ErrorCode.FRAME_TOO_LARGE, 2)


def test_a_handshake_frame_has_its_own_limit() -> None:
    message = Hello(extensions=((1, bytes(MAX_HANDSHAKE_BYTES)),))
    with pytest.raises(FrameTooLargeError, match="HELLO"):
        encode(message, None, LIMITS)
    with pytest.raises(FrameTooLargeError, match="HELLO"):
        decode(b"\x01\x01" + bytes(MAX_HANDSHAKE_BYTES))


@pytest.mark.parametrize("count", ["ffffffff07", "ffffffffffffffffff01"])
def test_a_count_that_lies_costs_nothing(count: str) -> None:
    frame = bytes.fromhex("03010105" + "0000" + count)
    with pytest.raises(MalformedFrameError, match="cut short"):
        decode(frame, VOCABULARY_SIZE)
    with pytest.raises(FrameTooLargeError):
        decode(frame, VOCABULARY_SIZE, LIMITS)


def test_a_token_outside_the_vocabulary_is_not_encoded() -> None:
    with pytest.raises(InvalidParameterError, match="token: token id 49152"):
        encode(Commit(stream=1, path=0, accepted=0, token=49152), VOCABULARY_SIZE, LIMITS)


def test_time_is_linear_in_the_frame() -> None:
    """Counted in lines of code run, not in seconds: four times the prompt is about four times the work."""

    def work(length: int) -> int:
        frame = encode(an_open(length), VOCABULARY_SIZE)
        lines = 0

        def trace(*_: object) -> object:
            nonlocal lines
            lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            decode(frame, VOCABULARY_SIZE, LIMITS_WIDE)
        finally:
            sys.settrace(before)
        return lines

    assert work(1600) < 4.4 * work(400)


# --- the size budget --------------------------------------------------------------------------------------------

HEADER_UP, HEADER_DOWN = 6, 2  # a WebSocket header below 126 bytes of payload; the client's is masked


def test_a_round_fits_32_bytes_up_and_16_down() -> None:
    up = encode(DRAFT, VOCABULARY_SIZE, LIMITS)
    down = encode(COMMIT, VOCABULARY_SIZE, LIMITS)
    assert len(up) <= 26
    assert len(down) <= 14
    assert len(up) + HEADER_UP <= 32
    assert len(down) + HEADER_DOWN <= 16


@pytest.mark.parametrize("width", [1, 16, 18, 31])
def test_a_round_grows_with_the_width_of_an_id_and_with_nothing_else_of_the_vocabulary(width: int) -> None:
    vocabulary_size = 1 << width if width < 31 else (1 << 31) - 1
    draft = Draft(stream=300, path=5000, start=8000, token_ids=(1, 0, 1, 1), confidences=(0,) * 4, sent_at=0)
    commit = Commit(stream=300, path=5000, accepted=4, token=1, echo=0, queued=80, computed=240)
    assert len(encode(draft, vocabulary_size)) == 14 + (4 * width + 7) // 8
    assert len(encode(commit, vocabulary_size)) == 11 + (width + 7) // 8
