"""The sans-I/O session: handshake, transition tables, faults that stay on their stream."""

from __future__ import annotations

from dataclasses import replace

import pytest
from draftwire.protocol.errors import (
    ErrorCode,
    FrameTooLargeError,
    IllegalMessageError,
    InvalidParameterError,
    MalformedFrameError,
    ProtocolError,
    VersionMismatchError,
)
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import (
    MESSAGE_SENDER,
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
    MessageType,
    Open,
    Opened,
    Prefix,
    Role,
    Welcome,
)
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import CONNECTION_TABLE, STREAM_TABLE, ConnectionState, Session, StreamState
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


# --- the handshake ----------------------------------------------------------------------------------------------


def test_handshake() -> None:
    pair = Pair(replace(HELLO, capabilities=Capability.TREES | Capability.PREFIXES | 0x100))
    for session in (pair.client, pair.verifier):
        assert session.state is ConnectionState.READY
        assert session.limits == LIMITS
        assert session.vocabulary_size == VOCABULARY_SIZE
        assert session.capabilities == Capability.TREES | Capability.PREFIXES
        assert session.drafting_allowed
        assert (session.next_stream, session.live_streams) == (1, ())


@pytest.mark.parametrize("fingerprint", [None, OTHER_FINGERPRINT])
def test_without_a_shared_vocabulary_the_verifier_welcomes_and_refuses_drafts(fingerprint: bytes | None) -> None:
    pair = Pair(replace(HELLO, fingerprint=fingerprint))
    assert not pair.client.drafting_allowed
    assert not pair.verifier.drafting_allowed
    assert pair.client.welcome is not None
    assert pair.client.welcome.fingerprint == FINGERPRINT
    pair.pass_on(an_open(), Opened(stream=1))
    for act in (lambda: pair.client.send(a_draft()), lambda: pair.verifier.receive(raw(a_draft()))):
        with pytest.raises(IllegalMessageError, match="vocabulary") as caught:
            act()
        assert (caught.value.code, caught.value.stream) == (ErrorCode.FINGERPRINT_MISMATCH, 1)
    with pytest.raises(IllegalMessageError, match="vocabulary"):
        pair.client.send(an_open(2, drafting=True))
    pair.pass_on(a_commit(), an_end())


@pytest.mark.parametrize("role", Role)
def test_another_version_names_both_and_fails_the_connection(role: Role) -> None:
    session = Session(role)
    if role is Role.CLIENT:
        session.send(HELLO)
    frame = encode(replace(WELCOME, version=9) if role is Role.CLIENT else replace(HELLO, version=9))
    with pytest.raises(VersionMismatchError, match="version 9, this end speaks 1") as caught:
        session.receive(frame)
    assert caught.value.stream is None
    assert session.state is ConnectionState.FAILED
    if role is Role.VERIFIER:
        session.send(Error.of(None, caught.value))
        assert session.state is ConnectionState.CLOSED


def test_a_verifier_may_refuse_before_welcome() -> None:
    client, verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
    verifier.receive(client.send(HELLO))
    assert client.receive(verifier.send(an_error(0))) == [an_error(0)]
    assert client.state is verifier.state is ConnectionState.CLOSED


@pytest.mark.parametrize("data", ["text", "", b""])
def test_text_and_nothing_are_malformed(data: bytes | str) -> None:
    session = Session(Role.VERIFIER)
    with pytest.raises(MalformedFrameError):
        session.receive(data)
    assert session.state is ConnectionState.FAILED
    assert session.receive(b"whatever") == []


# --- the tables -------------------------------------------------------------------------------------------------

SAMPLES: dict[MessageType, Message] = {
    message.type: message
    for message in (HELLO, an_open(), a_draft(), Cancel(stream=1), WELCOME, Opened(stream=1), a_commit(), an_end())
}
REACH: dict[StreamState, tuple[Message, ...]] = {
    StreamState.UNUSED: (),
    StreamState.OPENING: (an_open(),),
    StreamState.OPEN: (an_open(), Opened(stream=1)),
    StreamState.CANCELLING: (an_open(), Opened(stream=1), Cancel(stream=1)),
    StreamState.ENDED: (an_open(), Opened(stream=1), an_end()),
}


@pytest.mark.parametrize("before", StreamState)
@pytest.mark.parametrize("kind", [kind for kind in MessageType if kind not in (MessageType.HELLO, MessageType.WELCOME)])
def test_streams_obey_their_table_at_both_ends(before: StreamState, kind: MessageType) -> None:
    pair = Pair()
    pair.pass_on(*REACH[before])
    assert pair.states() == (before, before)
    message = an_error() if kind is MessageType.ERROR else SAMPLES[kind]
    sender, receiver = pair.ends(message)
    after = STREAM_TABLE.get((before, kind))
    if after is not None:
        pair.pass_on(message)
        assert pair.states() == (after, after)
        return
    with pytest.raises(IllegalMessageError):
        sender.send(message)
    if before is StreamState.ENDED and kind in (MessageType.DRAFT, MessageType.CANCEL):
        assert receiver.receive(raw(message)) == []
    else:
        with pytest.raises(IllegalMessageError):
            receiver.receive(raw(message))
    assert sender.stream_state(1) is before


CONNECTION_REACH: dict[ConnectionState, tuple[Message, ...]] = {
    ConnectionState.NEW: (),
    ConnectionState.GREETED: (HELLO,),
    ConnectionState.READY: (HELLO, WELCOME),
    ConnectionState.CLOSED: (HELLO, WELCOME, an_error(0)),
}


@pytest.mark.parametrize("before", CONNECTION_REACH)
@pytest.mark.parametrize("kind", [MessageType.HELLO, MessageType.WELCOME, MessageType.ERROR])
def test_connections_obey_their_table_at_both_ends(before: ConnectionState, kind: MessageType) -> None:
    pair = Pair.__new__(Pair)
    pair.client, pair.verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
    pair.pass_on(*CONNECTION_REACH[before])
    message = an_error(0) if kind is MessageType.ERROR else SAMPLES[kind]
    sender, receiver = pair.ends(message)
    after = CONNECTION_TABLE.get((before, kind))
    if after is not None:
        pair.pass_on(message)
        assert sender.state is receiver.state is after
        return
    with pytest.raises(IllegalMessageError):
        sender.send(message)
    assert sender.state is before
    if before is ConnectionState.CLOSED:
        assert receiver.receive(raw(message)) == []
        return
    with pytest.raises(IllegalMessageError) as caught:
        receiver.receive(raw(message))
    assert caught.value.stream is None
    assert receiver.state is ConnectionState.FAILED


@pytest.mark.parametrize("message", [an_open(), a_draft(), Cancel(stream=1)])
def test_streams_wait_for_the_handshake(message: Message) -> None:
    client, verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
    verifier.receive(client.send(HELLO))
    with pytest.raises(IllegalMessageError, match="greeted"):
        client.send(message)
    with pytest.raises(IllegalMessageError, match="greeted"):
        verifier.receive(raw(message))


@pytest.mark.parametrize("kind", MessageType)
def test_nobody_sends_the_other_ends_messages(kind: MessageType) -> None:
    pair = Pair()
    message = an_error() if kind is MessageType.ERROR else SAMPLES[kind]
    sender, receiver = pair.ends(message)
    with pytest.raises(IllegalMessageError, match="not the"):
        receiver.send(message)
    with pytest.raises(IllegalMessageError, match="not the"):
        sender.receive(raw(message))
    assert sender.state is ConnectionState.FAILED


def test_every_state_is_in_the_tables() -> None:
    assert {state for state, _ in STREAM_TABLE} | {StreamState.ENDED} == set(StreamState)
    assert {state for state, _ in CONNECTION_TABLE} | {ConnectionState.CLOSED} == set(ConnectionState)


# --- stream ids -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [1, 3])
def test_stream_ids_grow_by_one(stream: int) -> None:
    pair = Pair()
    pair.pass_on(an_open(1))
    with pytest.raises(IllegalMessageError, match="next stream is 2"):
        pair.client.send(an_open(stream))
    with pytest.raises(IllegalMessageError, match="next stream is 2") as caught:
        pair.verifier.receive(raw(an_open(stream)))
    assert caught.value.stream is None


def test_ended_streams_leave_nothing_behind() -> None:
    pair = Pair()
    for stream in range(1, 501):
        pair.pass_on(an_open(stream, params=REJECTION), Opened(stream=stream), an_end(stream))
    for session in (pair.client, pair.verifier):
        assert session.live_streams == ()
        assert session.next_stream == 501
        assert session.stream_state(250) is StreamState.ENDED
        assert not session._by_rejection


def test_streams_over_the_limit_are_refused_and_the_id_is_used_up() -> None:
    pair = Pair()
    pair.pass_on(an_open(1), an_open(2), an_open(3))
    with pytest.raises(IllegalMessageError, match="at most 3") as caught:
        pair.client.send(an_open(4))
    assert caught.value.code is ErrorCode.BUSY
    with pytest.raises(IllegalMessageError, match="at most 3") as caught:
        pair.verifier.receive(raw(an_open(4)))
    assert (caught.value.code, caught.value.stream) == (ErrorCode.BUSY, 4)
    pair.verifier.send(Error.of(4, caught.value, retry_after_ms=100))
    assert pair.verifier.live_streams == (1, 2, 3)
    assert pair.verifier.next_stream == 5


# --- capabilities -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (an_open(2, retain=True), Capability.PREFIXES),
        (an_open(2, prefix=Prefix(stream=1, length=3)), Capability.PREFIXES),
        (a_draft(parents=(0,)), Capability.TREES),
        (a_draft(source=1), Capability.SOURCES),
        (a_draft(sparse_q=(Q,), confidences=()), Capability.SPARSE_Q),
    ],
)
def test_what_is_not_agreed_is_refused_for_its_stream(message: Message, needed: Capability) -> None:
    without = Pair(welcome=replace(WELCOME, capabilities=ALL & ~needed))
    params = REJECTION if needed is Capability.SPARSE_Q else SamplingParams()
    without.pass_on(an_open(1, params=params))
    with pytest.raises(IllegalMessageError, match=str(needed.name)):
        without.client.send(message)
    with pytest.raises(IllegalMessageError, match=str(needed.name)) as caught:
        without.verifier.receive(raw(message))
    assert caught.value.stream == message.stream  # type: ignore[union-attr]
    without.verifier.send(Error.of(caught.value.stream, caught.value))
    assert without.verifier.state is ConnectionState.READY

    agreed = Pair()
    agreed.pass_on(an_open(1, params=params), message)


def test_sparse_q_comes_with_rejection_and_only_with_it() -> None:
    with_q = a_draft(sparse_q=(Q,), confidences=())
    for params, good, bad in (
        (REJECTION, with_q, a_draft()),
        (SamplingParams(temperature=1.0), a_draft(), with_q),
        (SamplingParams(temperature=0.0, mode="rejection"), a_draft(), with_q),
    ):
        pair = Pair()
        pair.pass_on(an_open(params=params), good)
        with pytest.raises(IllegalMessageError, match="sparse_q must come"):
            pair.client.send(bad)
        with pytest.raises(IllegalMessageError, match="sparse_q must come") as caught:
            pair.verifier.receive(raw(bad))
        assert caught.value.stream == 1


# --- faults stay where they are ---------------------------------------------------------------------------------


def test_a_malformed_draft_ends_its_stream_and_no_other() -> None:
    pair = Pair()
    pair.pass_on(an_open(1), an_open(2), Opened(stream=1), Opened(stream=2))
    with pytest.raises(MalformedFrameError) as caught:
        pair.verifier.receive(raw(a_draft(1))[:-1])
    assert caught.value.stream == 1
    pair.pass_on(Error.of(1, caught.value))
    assert pair.states(1) == (StreamState.ENDED, StreamState.ENDED)
    pair.pass_on(a_draft(2), a_commit(2), an_end(2))


def test_a_malformed_open_takes_its_id_and_is_answered() -> None:
    pair = Pair()
    frame = pair.client.send(an_open(1))
    with pytest.raises(MalformedFrameError) as caught:
        pair.verifier.receive(frame[:10])
    assert caught.value.stream == 1
    pair.client.receive(pair.verifier.send(Error.of(1, caught.value)))
    assert pair.states(1) == (StreamState.ENDED, StreamState.ENDED)
    assert pair.verifier.receive(pair.client.send(an_open(2))) == [an_open(2)]


def test_a_prompt_too_long_is_refused_before_it_is_sent_and_when_it_comes() -> None:
    pair = Pair()
    message = an_open(1, max_tokens=199)
    with pytest.raises(FrameTooLargeError, match="context of 200 tokens"):
        pair.client.send(message)
    assert pair.client.next_stream == 1
    with pytest.raises(FrameTooLargeError, match="context of 200 tokens") as caught:
        pair.verifier.receive(raw(message))
    error = Error.of(caught.value.stream, caught.value)
    assert (error.stream, error.code) == (1, ErrorCode.PROMPT_TOO_LONG)
    pair.verifier.send(error)


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "malformed"])
@pytest.mark.parametrize("message", [a_draft(1), Draft(stream=1, path=1, start=1, token_ids=(), sent_at=0)])
def test_what_crossed_the_end_is_ignored(message: Draft, cut: int) -> None:
    pair = Pair()
    pair.pass_on(an_open(1), Opened(stream=1))
    late = pair.client.send(message)
    pair.verifier.send(an_end(1))
    assert pair.verifier.receive(late[: len(late) - cut]) == []
    assert pair.verifier.state is ConnectionState.READY


def test_commits_that_crossed_a_cancel_still_count() -> None:
    pair = Pair()
    pair.pass_on(an_open(1))
    cancel = pair.client.send(Cancel(stream=1))
    late = [pair.verifier.send(Opened(stream=1)), pair.verifier.send(a_commit(1)), pair.verifier.send(an_end(1))]
    assert [pair.client.receive(frame) for frame in late] == [[Opened(stream=1)], [a_commit(1)], [an_end(1)]]
    assert pair.verifier.receive(cancel) == []
    assert pair.states() == (StreamState.ENDED, StreamState.ENDED)


@pytest.mark.parametrize("frame", [raw(a_draft(7)), raw(a_draft(7))[:-1], raw(Cancel(stream=7)), raw(an_open(7))[:9]])
def test_a_stream_never_opened_closes_the_connection(frame: bytes) -> None:
    pair = Pair()
    with pytest.raises(ProtocolError) as caught:
        pair.verifier.receive(frame)
    assert caught.value.stream is None
    assert pair.verifier.state is ConnectionState.FAILED


@pytest.mark.parametrize("message", [a_commit(1), an_end(1), an_error(1), Opened(stream=1)])
def test_a_verifier_that_speaks_on_after_the_end_closes_the_connection(message: Message) -> None:
    pair = Pair()
    pair.pass_on(an_open(1), Opened(stream=1), an_end(1))
    with pytest.raises(IllegalMessageError) as caught:
        pair.client.receive(raw(message))
    assert caught.value.stream is None


def test_a_client_answers_a_malformed_commit_with_cancel() -> None:
    pair = Pair()
    pair.pass_on(an_open(1), an_open(2), Opened(stream=1))
    with pytest.raises(MalformedFrameError) as caught:
        pair.client.receive(raw(a_commit(1)) + b"\x00")
    assert caught.value.stream == 1
    pair.pass_on(Cancel(stream=1), an_end(1), Opened(stream=2))


def test_after_a_fault_of_the_connection_one_error_is_left_to_say() -> None:
    pair = Pair()
    pair.pass_on(an_open(1), Opened(stream=1))
    with pytest.raises(MalformedFrameError) as caught:
        pair.verifier.receive(b"\x0f")
    with pytest.raises(IllegalMessageError, match="failed"):
        pair.verifier.send(a_commit(1))
    assert pair.client.receive(pair.verifier.send(Error.of(None, caught.value)))
    for session in (pair.client, pair.verifier):
        assert session.state is ConnectionState.CLOSED
        assert session.live_streams == ()
        assert session.receive(raw(a_draft(1))) == []
    with pytest.raises(IllegalMessageError, match="closed"):
        pair.client.send(Cancel(stream=1))


def test_close_is_for_a_lost_transport() -> None:
    pair = Pair()
    pair.pass_on(an_open(1))
    pair.client.close()
    assert pair.client.state is ConnectionState.CLOSED
    assert pair.client.live_streams == ()


def test_a_send_that_fails_changes_nothing() -> None:
    pair = Pair()
    with pytest.raises(InvalidParameterError, match="token id 100 is outside"):
        pair.client.send(an_open(1, token_ids=(100, 1)))
    assert (pair.client.next_stream, pair.client.live_streams) == (1, ())
    pair.pass_on(an_open(1))
