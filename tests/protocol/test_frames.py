"""The codec: golden bytes in both directions, round trips, limits, sizes, and bytes of no meaning at all."""

from __future__ import annotations

import json
import struct
from enum import Enum
from pathlib import Path

import pytest
from draftwire.protocol.errors import (
    ErrorCode,
    MalformedFrameError,
    ProtocolError,
    VersionMismatchError,
)
from draftwire.protocol.frames import decode, encode
from draftwire.protocol.messages import (
    Cancel,
    Capability,
    Commit,
    Draft,
    End,
    EndReason,
    Error,
    Hello,
    Limits,
    Message,
    Open,
    Opened,
    Policy,
    Prefix,
    Welcome,
)
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ

GOLDEN_FILE = Path(__file__).with_name("golden_frames.json")
GOLDEN = json.loads(GOLDEN_FILE.read_text(encoding="utf-8"))
VOCABULARY_SIZE = GOLDEN["vocabulary_size"]
LIMITS = Limits(**GOLDEN["limits"])
FINGERPRINT = bytes(range(16))

MESSAGES: dict[str, Message] = {
    "hello": Hello(
        capabilities=Capability.SPARSE_Q | Capability.PREFIXES, fingerprint=FINGERPRINT, agent="draftwire/0.1"
    ),
    "hello without a draft": Hello(),
    "hello of a later release": Hello(capabilities=Capability(0x100), extensions=((7, b"\xca\xfe"), (300, b""))),
    "welcome": Welcome(
        capabilities=Capability.SPARSE_Q | Capability.TREES,
        fingerprint=FINGERPRINT,
        target="demo-target",
        vocabulary_size=VOCABULARY_SIZE,
        eos_ids=(0, 2),
        limits=LIMITS,
    ),
    "open greedy": Open(
        stream=1,
        token_ids=(1, 9690, 198, 49151),
        prompt_length=4,
        params=SamplingParams(temperature=0.0),
        max_tokens=100,
        seed=0,
    ),
    "open with everything": Open(
        stream=300,
        token_ids=(5, 6, 7),
        prompt_length=41,
        params=SamplingParams(
            temperature=0.7,
            top_k=50,
            top_p=0.9,
            min_p=0.05,
            repetition_penalty=1.1,
            presence_penalty=-0.5,
            frequency_penalty=0.25,
            logit_bias=((3, -100.0), (49151, 1.5)),
            mode="rejection",
        ),
        max_tokens=4000,
        seed=0xFEDCBA9876543210,
        policy=Policy.COST,
        stop_ids=(0, 2),
        prefix=Prefix(stream=299, length=40),
        drafting=True,
        retain=True,
        extensions=((1, b"\x00"),),
    ),
    "draft": Draft(
        stream=300, path=5000, start=8000, token_ids=(1, 2, 3, 49151), confidences=(0, 16, 128, 255), sent_at=65535
    ),
    "draft that ends its path empty": Draft(stream=1, path=1, start=5, token_ids=(), sent_at=0),
    "draft that goes on": Draft(
        stream=1, path=2, start=5, token_ids=(258,), confidences=(4,), sent_at=0x1234, continues=True
    ),
    "draft for rejection": Draft(
        stream=2,
        path=1,
        start=5,
        token_ids=(7, 300),
        sent_at=1,
        continues=True,
        sparse_q=(SparseQ((7, 8, 9), (255, 16, 1)), SparseQ((300,), (255,))),
    ),
    "draft of a tree from another source": Draft(
        stream=2,
        path=1,
        start=5,
        token_ids=(7, 8, 9),
        confidences=(1, 2, 3),
        sent_at=1,
        parents=(0, 0, 2),
        source=3,
    ),
    "cancel": Cancel(stream=128),
    "opened": Opened(stream=1, cached=250),
    "commit": Commit(stream=300, path=5000, accepted=4, token=49151, echo=65535, queued=80, computed=240),
    "commit of run-ahead": Commit(stream=1, path=0, accepted=0, token=42, computed=240),
    "commit with the bonus withheld": Commit(stream=1, path=3, accepted=2, token=None, echo=0x1234, computed=7),
    "error on a stream": Error(
        stream=3, code=ErrorCode.BUSY, message="8 streams are open; try again", retry_after_ms=1500
    ),
    "error on the connection": Error(stream=0, code=ErrorCode.MALFORMED_FRAME, message="unlesbar: \u00fc"),
    "end": End(
        stream=1,
        reason=EndReason.LENGTH,
        prompt_tokens=1000,
        committed_tokens=100,
        drafted_tokens=130,
        accepted_tokens=70,
        target_passes=30,
        run_ahead_tokens=12,
    ),
}


def as_json(value: object) -> object:
    """A message as the golden file writes it: enums by name, bytes in hex, tuples as lists."""
    if isinstance(value, Capability):
        return int(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple):
        return [as_json(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: as_json(getattr(value, name)) for name in value.__dataclass_fields__ if name != "type"}
    return value


def check(message: Message, expected: str) -> None:
    """Both directions at once: the message gives these bytes, the bytes give this message."""
    assert encode(message, VOCABULARY_SIZE, LIMITS).hex() == expected
    assert decode(bytes.fromhex(expected), VOCABULARY_SIZE, LIMITS) == message


@pytest.mark.parametrize("name", MESSAGES)
def test_golden(name: str) -> None:
    vector = GOLDEN["frames"][name]
    check(MESSAGES[name], vector["hex"])
    assert vector["type"] == MESSAGES[name].type.name
    assert vector["message"] == as_json(MESSAGES[name])


def test_the_golden_file_holds_these_and_no_others() -> None:
    assert set(GOLDEN["frames"]) == set(MESSAGES)


@pytest.mark.parametrize("name", GOLDEN["refused"])
def test_golden_refusals(name: str) -> None:
    vector = GOLDEN["refused"][name]
    with pytest.raises(ProtocolError) as caught:
        decode(bytes.fromhex(vector["hex"]), VOCABULARY_SIZE, LIMITS)
    assert (caught.value.code.name, caught.value.stream) == (vector["code"], vector["stream"])


@pytest.mark.parametrize("frame", [bytes([kind | 0xF0]) + b"\x01" * 12 for kind in (1, 2, 4, 8, 9, 10, 11, 12)])
def test_unknown_flags_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrameError, match="unknown flags"):
        decode(frame, VOCABULARY_SIZE)


@pytest.mark.parametrize("kind", [0, 5, 6, 7, 13, 14, 15])
def test_unknown_types_are_refused(kind: int) -> None:
    with pytest.raises(MalformedFrameError, match=f"type {kind} is unknown"):
        decode(bytes([kind, 1]), VOCABULARY_SIZE)


@pytest.mark.parametrize("kind", [1, 8])
def test_another_version_is_named_whatever_follows(kind: int) -> None:
    with pytest.raises(VersionMismatchError, match="protocol version 2, this end speaks 1") as caught:
        decode(bytes([kind | 0xF0, 2]) + b"\xff" * 20)
    assert caught.value.stream is None


def test_an_error_code_of_a_later_release_is_internal() -> None:
    frame = bytearray(encode(Error(stream=1, code=ErrorCode.BUSY, message="x")))
    frame[2] = 200
    assert decode(bytes(frame)) == Error(stream=1, code=ErrorCode.INTERNAL, message="x")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", -1.0),
        ("top_p", -1.0),
        ("top_p", 2.0),
        ("min_p", float("inf")),
        ("repetition_penalty", 0.0),
    ],
)
def test_a_sampling_parameter_out_of_range_is_named_for_its_stream(field: str, value: float) -> None:
    reals = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    frame = bytearray(encode(MESSAGES["open greedy"], VOCABULARY_SIZE))
    # type, stream, prompt length, max tokens (1 byte each), policy, seed, mode
    struct.pack_into("<d", frame, 4 + 1 + 8 + 1 + 8 * reals.index(field), value)
    with pytest.raises(MalformedFrameError, match=field) as caught:
        decode(bytes(frame), VOCABULARY_SIZE)
    assert (caught.value.code, caught.value.stream) == (ErrorCode.INVALID_PARAMETER, 1)
