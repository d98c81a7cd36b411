"""Two sessions joined by a wire, and a message of every kind for them."""

from __future__ import annotations

from dataclasses import replace

from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import (
    MESSAGE_SENDER,
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
    Role,
    Welcome,
)
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import Session, StreamState
from draftwire.protocol.sparse_q import SparseQ

VOCABULARY_SIZE = 100
FINGERPRINT, OTHER_FINGERPRINT = bytes(16), b"\x01" * 16
LIMITS = Limits(max_context=200, max_streams=3, max_message_bytes=1024, max_draft_tokens=8, max_backlog=16)
ALL = Capability.SPARSE_Q | Capability.TREES | Capability.SOURCES | Capability.PREFIXES

HELLO = Hello(capabilities=ALL, fingerprint=FINGERPRINT)
WELCOME = Welcome(
    capabilities=ALL,
    fingerprint=FINGERPRINT,
    target="t",
    vocabulary_size=VOCABULARY_SIZE,
    eos_ids=(0,),
    limits=LIMITS,
)
REJECTION = SamplingParams(temperature=1.0, mode="rejection")
Q = SparseQ((5,), (255,))


def an_open(stream: int = 1, **changes: object) -> Open:
    message = Open(stream=stream, token_ids=(1, 2), prompt_length=2, params=SamplingParams(), max_tokens=5, seed=1)
    return replace(message, **changes)  # type: ignore[arg-type]


def a_draft(stream: int = 1, **changes: object) -> Draft:
    message = Draft(stream=stream, path=1, start=2, token_ids=(5,), confidences=(0,), sent_at=0)
    return replace(message, **changes)  # type: ignore[arg-type]


def a_commit(stream: int = 1) -> Commit:
    return Commit(stream=stream, path=0, accepted=0, token=3)


def an_end(stream: int = 1) -> End:
    return End(stream=stream, reason=EndReason.STOP)


def an_error(stream: int = 1) -> Error:
    return Error(stream=stream, code=ErrorCode.BUSY)


class Pair:
    """Two sessions joined by a wire on which nothing crosses."""

    def __init__(self, hello: Hello = HELLO, welcome: Welcome = WELCOME) -> None:
        self.client, self.verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
        self.pass_on(hello, welcome)

    def pass_on(self, *messages: Message) -> None:
        for message in messages:
            sender, receiver = self.ends(message)
            assert receiver.receive(sender.send(message)) == [message]

    def ends(self, message: Message) -> tuple[Session, Session]:
        if MESSAGE_SENDER[message.type] is Role.CLIENT:
            return self.client, self.verifier
        return self.verifier, self.client

    def states(self, stream: int = 1) -> tuple[StreamState, StreamState]:
        return self.client.stream_state(stream), self.verifier.stream_state(stream)


def raw(message: Message) -> bytes:
    """A frame from an end that breaks the rules."""
    return encode(message, VOCABULARY_SIZE)
