"""The sans-I/O session: handshake, transition tables, stream ids, capabilities."""

from __future__ import annotations

from dataclasses import replace

import pytest
from draftwire.protocol.errors import ErrorCode, IllegalMessageError, MalformedFrameError, VersionMismatchError
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Cancel, Capability, Error, Message, MessageType, Opened, Prefix, Role
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import CONNECTION_TABLE, STREAM_TABLE, ConnectionState, Session, StreamState

from .session_rig import (
    ALL,
    FINGERPRINT,
    HELLO,
    LIMITS,
    OTHER_FINGERPRINT,
    REJECTION,
    VOCABULARY_SIZE,
    WELCOME,
    Pair,
    Q,
    a_commit,
    a_draft,
    an_end,
    an_error,
    an_open,
    raw,
)

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
