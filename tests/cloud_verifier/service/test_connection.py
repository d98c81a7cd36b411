"""Frames in, frames out: a client's connection over an engine that is stepped by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.service.allowance import Allowance
from draftwire.cloud_verifier.service.config import KeyRules
from draftwire.cloud_verifier.service.connection import CAPABILITIES, Connection
from draftwire.cloud_verifier.service.http import Visitor
from draftwire.cloud_verifier.service.quota import Buckets
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.codes import PROTOCOL_VERSION, Capability, Role
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import (
    Cancel,
    Commit,
    Draft,
    End,
    EndReason,
    Error,
    Hello,
    Message,
    Open,
    Opened,
    Welcome,
)
from draftwire.protocol.session import Session

from ..engine.engine_rig import GREEDY, LIMITS, PROMPT, V, alone, finish, step


class Client:
    """The far end: a session of its own, fed with every frame the connection sends."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.target = TableTarget(vocabulary_size=V, seed=3)
        self.frames: list[bytes] = []
        self.heard: list[Message] = []
        self.later: list[Callable[[], None]] = []
        self.session = Session(Role.CLIENT)
        self.connection = Connection(
            engine, self.target.info, LIMITS, send=self.frames.append, schedule=self.later.append, **options
        )

    def send(self, message: Message) -> bool:
        return self.connection.receive(self.session.send(message))

    def hear(self) -> list[Message]:
        """What has come since the last time, once the event loop has had its turn."""
        while self.later:
            self.later.pop(0)()
        messages = [message for frame in self.frames for message in self.session.receive(frame)]
        self.frames.clear()
        self.heard += messages
        return messages

    def greet(self, **options: Any) -> Welcome:
        hello = {"capabilities": CAPABILITIES, "fingerprint": self.target.info.fingerprint, **options}
        assert self.send(Hello(**hello))
        (welcome,) = self.hear()
        assert isinstance(welcome, Welcome)
        return welcome

    def open(self, stream: int = 1, **options: Any) -> None:
        defaults: dict[str, Any] = {
            "token_ids": PROMPT,
            "prompt_length": 4,
            "params": GREEDY,
            "max_tokens": 6,
            "seed": 7,
        }
        assert self.send(Open(stream=stream, **{**defaults, **options}))

    def tokens(self, stream: int = 1) -> list[int | None]:
        return [m.token for m in self.heard if isinstance(m, Commit) and m.stream == stream]


@pytest.fixture
def engine() -> Engine:
    return Engine(TableTarget(vocabulary_size=V, seed=3), limits=LIMITS)


@pytest.fixture
def client(engine: Engine) -> Client:
    client = Client(engine)
    client.greet()
    return client


def test_the_welcome_says_what_the_target_is(engine: Engine) -> None:
    client = Client(engine)
    welcome = client.greet(capabilities=Capability.TREES | Capability.SPARSE_Q, fingerprint=None)
    info = client.target.info
    assert welcome == Welcome(
        version=PROTOCOL_VERSION,
        capabilities=CAPABILITIES,
        fingerprint=info.fingerprint,
        target=info.name,
        vocabulary_size=V,
        eos_ids=info.eos_ids,
        limits=LIMITS,
    )
    assert client.session.capabilities == Capability.SPARSE_Q


def test_a_stream_from_open_to_end(engine: Engine, client: Client) -> None:
    client.open(drafting=True)
    expected = alone(GREEDY, 6)
    assert client.send(Draft(stream=1, path=1, start=4, token_ids=(expected[0],), confidences=(0,), sent_at=12))
    finish(engine)
    messages = client.hear()
    assert [type(message) for message in messages] == [Opened, *[Commit] * 5, End]
    assert messages[1].accepted == 1  # type: ignore[union-attr]
    assert messages[1].echo == 12  # type: ignore[union-attr]
    assert client.tokens() == expected[1:]


def test_nothing_is_sent_from_the_engines_thread(engine: Engine, client: Client) -> None:
    """And the event loop is woken once for all that comes before its turn."""
    client.open()
    step(engine)
    step(engine)
    assert client.frames == []
    assert len(client.later) == 1
    assert [type(message) for message in client.hear()] == [Opened, Commit, Commit]
    step(engine)
    assert len(client.later) == 1
    assert len(client.hear()) == 1


def test_cancel_is_answered(engine: Engine, client: Client) -> None:
    client.open(max_tokens=500)
    step(engine)
    assert client.send(Cancel(stream=1))
    step(engine)
    assert client.hear()[-1] == End(
        stream=1,
        reason=EndReason.CANCELLED,
        prompt_tokens=4,
        committed_tokens=1,
        target_passes=1,
    )


def test_a_fault_of_one_stream_leaves_the_others_and_the_connection(engine: Engine, client: Client) -> None:
    client.open(1)
    client.open(2)
    frame = bytearray(client.session.send(Cancel(stream=1)))
    assert client.connection.receive(bytes(frame) + b"\x00")  # trailing bytes, in a frame whose stream is known
    (error,) = [message for message in client.hear() if isinstance(message, Error)]
    assert (error.stream, error.code) == (1, ErrorCode.MALFORMED_FRAME)
    finish(engine)
    client.hear()
    assert client.tokens(2) == alone(GREEDY, 6)
    assert client.tokens(1) == []


def test_what_the_engine_says_of_a_stream_that_broke_the_protocol_is_swallowed(engine: Engine, client: Client) -> None:
    client.open(1)
    step(engine)
    client.connection.receive(client.session.send(Cancel(stream=1)) + b"\x00")  # ERROR goes out before OPENED does
    assert isinstance(client.session.receive(client.frames.pop(0))[0], Error)
    assert client.hear() == []


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x0f\x01", "text", b"\x08\x01", b"\x04\x07"])
def test_a_fault_of_the_connection_closes_it_after_an_error(engine: Engine, client: Client, data: bytes | str) -> None:
    client.open(1)
    assert client.connection.receive(data) is False
    (error,) = [message for message in client.hear() if isinstance(message, Error)]
    assert error.stream == 0
    client.connection.closed()
    step(engine)
    assert engine.active_streams == 0


def test_a_message_before_hello_closes(engine: Engine) -> None:
    client = Client(engine)
    other = Client(engine)
    other.greet()
    frame = other.session.send(Open(stream=1, token_ids=PROMPT, prompt_length=4, params=GREEDY, max_tokens=6, seed=7))
    assert client.connection.receive(frame) is False
    assert len(client.frames) == 1
    assert engine.active_streams == 0


def test_another_version_is_refused(engine: Engine) -> None:
    client = Client(engine)
    frame = bytearray(client.session.send(Hello()))
    frame[1] = 9
    assert client.connection.receive(bytes(frame)) is False
    (error,) = client.hear()
    assert isinstance(error, Error)
    assert error.code is ErrorCode.VERSION_MISMATCH


def test_a_client_that_left_hears_no_more(engine: Engine, client: Client) -> None:
    client.open(max_tokens=500)
    step(engine)
    client.connection.closed()
    client.hear()
    step(engine)
    assert client.heard[1:] == []
    assert engine.active_streams == 0
    assert engine._target._tokens == {}  # type: ignore[attr-defined]


def test_nothing_is_taken_of_a_client_that_left(engine: Engine, client: Client) -> None:
    """What is read after its end would be nobody's to drop."""
    client.connection.closed()
    request = Open(stream=1, token_ids=PROMPT, prompt_length=len(PROMPT), params=GREEDY, max_tokens=4, seed=0)
    assert not client.send(request)
    step(engine)
    assert engine.active_streams == 0


def test_a_socket_is_not_read_on_while_the_engine_is_far_behind(engine: Engine, client: Client) -> None:
    other = Client(engine)
    other.greet()
    client.open(drafting=True, max_tokens=200)
    start, frames, roomy = 4, 0, []
    while not client.connection.crowded:
        assert client.send(Draft(stream=1, path=1, start=start, token_ids=(39,) * 64, confidences=(0,) * 64, sent_at=0))
        start, frames = start + 64, frames + 1
    assert 100 < frames < 10_000
    client.connection.when_room(lambda: roomy.append(client))
    other.connection.when_room(lambda: roomy.append(other))
    assert [client for client in [client, other] if client.connection.crowded] == [client]
    other.hear()
    client.hear()
    assert roomy == [other]
    step(engine)
    assert not client.connection.crowded
    client.hear()
    assert roomy == [other, client]
    finish(engine)
    client.hear()
    assert client.heard[-1].code is ErrorCode.FRAME_TOO_LARGE  # type: ignore[union-attr]


def test_refusals_of_the_engine_reach_the_client(engine: Engine, client: Client) -> None:
    other = Client(engine)
    other.greet()
    for stream in range(1, LIMITS.max_streams + 1):
        client.open(stream)
    other.open()
    step(engine)
    (error,) = other.hear()
    assert isinstance(error, Error)
    assert (error.stream, error.code) == (1, ErrorCode.BUSY)


def test_two_clients_may_use_the_same_stream_ids(engine: Engine, client: Client) -> None:
    other = Client(engine)
    other.greet()
    client.open(1)
    other.open(1, seed=99)
    finish(engine)
    client.hear()
    other.hear()
    assert client.tokens() == other.tokens() == alone(GREEDY, 6)


# --- what the door says -------------------------------------------------------------------------------------------


def test_a_stream_beyond_the_allowance_is_refused_and_the_connection_goes_on(engine: Engine) -> None:
    allowance = Allowance(
        tenant=lambda: Tenant(name="alice", max_streams=3),
        rules=lambda: KeyRules(requests_per_minute=1.0, max_output_tokens=6),
        buckets=Buckets(most=1, clock=lambda: 0.0),
        name="alice",
        refused=lambda _: None,
    )
    client = Client(engine, visitor=Visitor(allowance=allowance))
    client.greet()
    client.open(1, max_tokens=7)
    client.open(2)
    client.open(3)
    errors = [message for message in client.hear() if isinstance(message, Error)]
    assert [(error.stream, error.code) for error in errors] == [(1, ErrorCode.INVALID_PARAMETER), (3, ErrorCode.BUSY)]
    assert errors[1].retry_after_ms == 60_000
    assert client.connection.tenant.max_streams == 3
    finish(engine)
    client.hear()
    assert client.tokens(2) == alone(GREEDY, 6)


def test_it_tells_of_hello_and_of_streams_that_begin_and_end(engine: Engine) -> None:
    client = Client(engine)
    idleness, changes = client.connection.idleness, []
    idleness.when_changed = lambda: changes.append((idleness._greeted, idleness._since is None))
    client.greet()
    client.open()
    finish(engine)
    client.hear()
    assert changes == [(True, False), (True, True), (True, False)]


def test_a_dismissed_client_is_told_and_its_streams_end(engine: Engine, client: Client) -> None:
    client.open(max_tokens=500)
    step(engine)
    client.connection.dismiss("the key is gone", ErrorCode.UNAUTHORIZED)
    assert client.hear()[-1] == Error(stream=0, code=ErrorCode.UNAUTHORIZED, message="the key is gone")
    step(engine)
    assert engine.active_streams == 0
    assert client.connection.dismissed


def test_what_the_engine_never_sees_is_counted_as_refused() -> None:
    """A fault of the connection, and one of a stream that it would have opened; not one of a stream that runs."""
    counted: list[str] = []
    engine = Engine(TableTarget(vocabulary_size=V, seed=3), limits=LIMITS)
    client = Client(engine, visitor=Visitor(refused=counted.append))
    client.greet()
    client.open()
    step(engine)
    client.connection.receive(
        client.session.send(Draft(stream=1, path=1, start=1000, token_ids=(1,), sent_at=0, confidences=(0,)))
    )
    assert counted == []
    request = Open(stream=2, token_ids=PROMPT, prompt_length=len(PROMPT), params=GREEDY, max_tokens=4, seed=0)
    client.connection.receive(client.session.send(request)[:-3])
    assert counted == ["malformed_frame"]
    client.connection.receive(b"\x0f")
    assert counted == ["malformed_frame", "malformed_frame"]
