from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from draftwire.protocol import messages as m
from draftwire.protocol.errors import (
    BusyError,
    ErrorCode,
    FingerprintMismatchError,
    FrameTooLargeError,
    InvalidParameterError,
    MalformedFrameError,
    NonFiniteLogitsError,
)
from draftwire.protocol.messages import (
    Capability,
    Commit,
    Draft,
    End,
    EndReason,
    Error,
    Hello,
    Limits,
    MessageType,
    Open,
    Opened,
    Prefix,
    Role,
    Welcome,
)
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ

LIMITS = Limits(max_context=100, max_streams=2, max_message_bytes=4096, max_draft_tokens=8, max_backlog=16)
HELLO = Hello(fingerprint=bytes(16))
WELCOME = Welcome(fingerprint=bytes(16), target="t", vocabulary_size=10, eos_ids=(0,), limits=LIMITS)
OPEN = Open(stream=2, token_ids=(1, 2), prompt_length=2, params=SamplingParams(), max_tokens=5, seed=1)
DRAFT = Draft(stream=1, path=1, start=2, token_ids=(1, 2), confidences=(0, 9), sent_at=3)
COMMIT = Commit(stream=1, path=1, accepted=1, token=3)
END = End(stream=1, reason=EndReason.STOP)
ERROR = Error(stream=0, code=ErrorCode.BUSY)


@pytest.mark.parametrize(
    ("message", "field", "value"),
    [
        (HELLO, "version", 256),
        (HELLO, "capabilities", 1 << 32),
        (HELLO, "fingerprint", b"short"),
        (HELLO, "agent", "x" * 65),
        (HELLO, "agent", "\ud800"),
        (HELLO, "extensions", ((-1, b""),)),
        (HELLO, "extensions", ((1, "text"),)),
        (WELCOME, "fingerprint", None),
        (WELCOME, "target", "x" * 257),
        (WELCOME, "vocabulary_size", 1),
        (WELCOME, "vocabulary_size", 1 << 31),
        (WELCOME, "eos_ids", (10,)),
        (WELCOME, "eos_ids", (0,) * 257),
        (LIMITS, "max_context", 0),
        (LIMITS, "max_streams", 0),
        (LIMITS, "max_message_bytes", 1023),
        (LIMITS, "max_draft_tokens", 0),
        (LIMITS, "max_backlog", 0),
        (OPEN, "stream", 0),
        (OPEN, "stream", 1 << 32),
        (OPEN, "stream", True),
        (OPEN, "stream", 1.0),
        (OPEN, "token_ids", ()),
        (OPEN, "token_ids", (1, -1)),
        (OPEN, "token_ids", (1, 1 << 31)),
        (OPEN, "token_ids", (1, 2.0)),
        (OPEN, "token_ids", (1, True)),
        (OPEN, "token_ids", [1, 2]),
        (OPEN, "prompt_length", 0),
        (OPEN, "prompt_length", 3),
        (OPEN, "max_tokens", 0),
        (OPEN, "seed", -1),
        (OPEN, "seed", 1 << 64),
        (OPEN, "stop_ids", (-1,)),
        (OPEN, "stop_ids", tuple(range(257))),
        (DRAFT, "path", 0),
        (DRAFT, "start", 0),
        (DRAFT, "token_ids", (1, -1)),
        (DRAFT, "token_ids", (1, 1 << 31)),
        (DRAFT, "confidences", (0,)),
        (DRAFT, "confidences", (0, 256)),
        (DRAFT, "sent_at", 1 << 16),
        (DRAFT, "sent_at", -1),
        (DRAFT, "parents", (0,)),
        (DRAFT, "parents", (0, 2)),
        (DRAFT, "source", 256),
        (COMMIT, "token", -1),
        (COMMIT, "token", 1 << 31),
        (COMMIT, "accepted", -1),
        (COMMIT, "path", 0),
        (COMMIT, "echo", 1 << 16),
        (COMMIT, "queued", -1),
        (COMMIT, "computed", 1 << 32),
        (END, "committed_tokens", -1),
        (ERROR, "message", "x" * 501),
        (ERROR, "retry_after_ms", -1),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(message: object, field: str, value: object) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        dataclasses.replace(message, **{field: value})  # type: ignore[type-var]
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Commit(stream=1, path=1, accepted=0, token=None), "token"),
        (lambda: Prefix(stream=0, length=1), "prefix.stream"),
        (lambda: Prefix(stream=1, length=0), "prefix.length"),
        (lambda: dataclasses.replace(OPEN, prefix=Prefix(stream=2, length=4)), "prefix.stream"),
        (lambda: dataclasses.replace(DRAFT, sparse_q=(SparseQ((1,), (1,)),), confidences=()), "sparse_q"),
        (lambda: dataclasses.replace(DRAFT, sparse_q=(SparseQ((1,), (1,)),) * 2, confidences=()), "sparse_q"),
        (lambda: dataclasses.replace(DRAFT, sparse_q=(SparseQ((1, 2), (1, 1)),) * 2), "confidences"),
    ],
)
def test_fields_that_do_not_go_together(make: Callable[[], object], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        make()
    assert caught.value.field == field


def test_a_prefix_counts_towards_the_sequence() -> None:
    message = dataclasses.replace(OPEN, prefix=Prefix(stream=1, length=40), prompt_length=41)
    assert message.length == 42


def test_an_empty_draft_that_ends_its_path_is_a_message() -> None:
    assert not Draft(stream=1, path=3, start=9, token_ids=(), sent_at=0).continues


def test_messages_are_frozen_and_slotted() -> None:
    for message in (HELLO, WELCOME, OPEN, DRAFT, COMMIT, END, ERROR, Opened(stream=1)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, dataclasses.fields(message)[0].name, 5)
        assert not hasattr(message, "__dict__")


def test_every_type_has_one_sender() -> None:
    assert set(m.MESSAGE_SENDER) == set(MessageType)
    assert {kind for kind, role in m.MESSAGE_SENDER.items() if role is Role.CLIENT} == {
        MessageType.HELLO,
        MessageType.OPEN,
        MessageType.DRAFT,
        MessageType.CANCEL,
    }


def test_unknown_capability_bits_are_kept() -> None:
    assert Capability(Capability.TREES | 1 << 20) & Capability.TREES
    assert int(Hello(capabilities=Capability(1 << 20)).capabilities) == 1 << 20


@pytest.mark.parametrize("name", m.__all__)
def test_all_is_there(name: str) -> None:
    assert hasattr(m, name)


# --- Error.of ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (MalformedFrameError("cut short", stream=4), ErrorCode.MALFORMED_FRAME),
        (FrameTooLargeError("too big"), ErrorCode.FRAME_TOO_LARGE),
        (InvalidParameterError("temperature", "must be 0 or more"), ErrorCode.INVALID_PARAMETER),
        (FingerprintMismatchError("other vocabulary"), ErrorCode.FINGERPRINT_MISMATCH),
        (NonFiniteLogitsError("NaN"), ErrorCode.NON_FINITE_LOGITS),
        (BusyError("full", code=ErrorCode.BUSY), ErrorCode.BUSY),
        ("plain text", ErrorCode.INTERNAL),
    ],
)
def test_error_of_takes_code_and_text(cause: BaseException | str, code: ErrorCode) -> None:
    error = Error.of(7, cause)
    assert (error.stream, error.code, error.message) == (7, code, str(cause))


def test_error_of_keeps_foreign_exceptions_to_itself() -> None:
    error = Error.of(None, RuntimeError("/secret/path: CUDA error"))
    assert (error.stream, error.code) == (0, ErrorCode.INTERNAL)
    assert "secret" not in error.message


def test_error_of_carries_retry_after() -> None:
    assert Error.of(1, BusyError("full", code=ErrorCode.BUSY, retry_after=1.5)).retry_after_ms == 1500
    assert Error.of(1, "full", code=ErrorCode.BUSY, retry_after_ms=20).retry_after_ms == 20


@pytest.mark.parametrize("text", ["x" * 501, "\u00e4" * 400, "\U0001f600" * 200, "a" + "\u20ac" * 200])
def test_error_of_shortens_between_characters(text: str) -> None:
    message = Error.of(1, text).message
    assert len(message.encode()) <= 500
    assert len(message.encode()) > 490
    assert message.endswith("...")
    assert text.startswith(message[:-3])


def test_error_of_makes_one_line() -> None:
    assert Error.of(1, "first\nsecond\t third \ud800").message == "first second third ?"
