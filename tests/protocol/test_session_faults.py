"""Faults of a session stay where they are: on a message, a stream, or a connection."""

from __future__ import annotations

import pytest
from draftwire.protocol.errors import (
    ErrorCode,
    FrameTooLargeError,
    IllegalMessageError,
    InvalidParameterError,
    MalformedFrameError,
    ProtocolError,
)
from draftwire.protocol.messages import Cancel, Draft, Error, Message, Opened
from draftwire.protocol.session import ConnectionState, StreamState

from .session_rig import Pair, a_commit, a_draft, an_end, an_error, an_open, raw


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
