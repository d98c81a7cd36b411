"""What ends a generation, what does not, and how long it waits: on a clock that the test moves."""

from __future__ import annotations

import pytest
from draftwire.edge_client.backoff import Backoff
from draftwire.edge_client.resumption import Resumption, is_loss
from draftwire.protocol.errors import (
    AuthenticationError,
    BusyError,
    ConnectionLostError,
    DrafterError,
    DraftwireError,
    ErrorCode,
    FingerprintMismatchError,
    IllegalMessageError,
    InternalVerifierError,
    InvalidParameterError,
    PromptTooLongError,
    StreamError,
    VerifierRefusedError,
    VerifierUnreachableError,
    VersionMismatchError,
)

LOST = ConnectionLostError("the connection broke off; generate again")
GOING = StreamError("bye", code=ErrorCode.SHUTTING_DOWN)
BUSY = BusyError("full; try again", code=ErrorCode.BUSY, retry_after=2.0)
FAILED = InternalVerifierError("it broke", code=ErrorCode.INTERNAL)
IDLE = StreamError("too long", code=ErrorCode.IDLE_TIMEOUT)
FINAL = [
    AuthenticationError("the key"),
    ConnectionLostError("closed (1009)", retryable=False),
    DrafterError("x"),
    FingerprintMismatchError("x"),
    IllegalMessageError("x"),
    InternalVerifierError("NaN", code=ErrorCode.NON_FINITE_LOGITS),
    InvalidParameterError("prompt", "x"),
    PromptTooLongError("x", code=ErrorCode.PROMPT_TOO_LONG),
    StreamError("x", code=ErrorCode.INVALID_PARAMETER),
    VerifierRefusedError("404"),
    VersionMismatchError("x"),
]


def resumption_of(*, seconds: float = 30.0, wait_when_busy: bool = True) -> Resumption:
    return Resumption(seconds=seconds, wait_when_busy=wait_when_busy, backoff=Backoff(draw=lambda: 1.0))


@pytest.mark.parametrize("error", FINAL, ids=lambda error: type(error).__name__)
def test_what_trying_again_cannot_mend_ends_it_at_once(error: DraftwireError) -> None:
    assert resumption_of().wait_after(error, 0.0, lost=False) is None
    assert resumption_of().wait_after(error, 0.0, lost=True) is None


@pytest.mark.parametrize("error", [LOST, GOING, IDLE, VerifierUnreachableError("x")], ids=str)
def test_after_a_loss_whoever_searches_spaces_the_looks(error: DraftwireError) -> None:
    resumption = resumption_of()
    assert [resumption.wait_after(error, now, lost=True) for now in (0.0, 10.0, 29.0)] == [0.0, 0.0, 0.0]
    assert resumption.wait_after(error, 30.0, lost=True) is None


def test_a_committed_token_gives_the_whole_time_again() -> None:
    resumption = resumption_of()
    assert resumption.wait_after(LOST, 0.0, lost=True) == 0.0
    resumption.progressed()
    assert resumption.wait_after(LOST, 45.0, lost=True) == 0.0
    assert resumption.wait_after(LOST, 74.0, lost=True) == 0.0
    assert resumption.wait_after(LOST, 75.0, lost=True) is None


def test_on_a_connection_that_holds_the_waits_grow() -> None:
    resumption = resumption_of()
    waits = [resumption.wait_after(VerifierUnreachableError("no tokenizer"), 0.0, lost=False) for _ in range(3)]
    assert waits == pytest.approx([0.1, 0.2, 0.4])


def test_a_busy_verifier_is_given_the_time_it_asks_for() -> None:
    resumption = resumption_of()
    assert resumption.wait_after(BUSY, 0.0, lost=False) == pytest.approx(2.1)
    assert resumption.wait_after(BUSY, 2.1, lost=False) == pytest.approx(2.2)
    assert resumption.wait_after(BUSY, 28.0, lost=False) is None  # it would be told so after the last moment


def test_a_busy_verifier_that_names_no_time() -> None:
    assert resumption_of().wait_after(BusyError("x", code=ErrorCode.BUSY), 0.0, lost=False) == pytest.approx(0.1)


def test_whoever_will_not_wait_is_told_at_once() -> None:
    resumption = resumption_of(wait_when_busy=False)
    assert resumption.wait_after(BUSY, 0.0, lost=False) is None
    assert resumption.wait_after(LOST, 0.0, lost=True) == 0.0


def test_a_verifier_that_fails_on_a_stream_is_tried_once_more() -> None:
    resumption = resumption_of()
    assert resumption.wait_after(FAILED, 0.0, lost=False) == pytest.approx(0.1)
    resumption.progressed()
    assert resumption.wait_after(FAILED, 1.0, lost=False) is None


@pytest.mark.parametrize("error", [LOST, GOING, BUSY, FAILED], ids=str)
def test_without_time_the_first_failure_ends_it(error: DraftwireError) -> None:
    assert resumption_of(seconds=0.0).wait_after(error, 0.0, lost=True) is None


@pytest.mark.parametrize("error", [LOST, GOING, IDLE, VerifierUnreachableError("x")], ids=str)
def test_there_is_no_verifier(error: DraftwireError) -> None:
    assert is_loss(error)
    assert is_loss(VerifierRefusedError("503", retryable=True))


@pytest.mark.parametrize("error", [BUSY, FAILED, *FINAL], ids=lambda error: type(error).__name__)
def test_there_is_one(error: DraftwireError) -> None:
    assert not is_loss(error)


def test_a_headline_is_what_is_wrong_without_the_advice() -> None:
    assert LOST.headline == "the connection broke off"
    assert VerifierUnreachableError("nobody there").headline == "nobody there"
