"""Two honest sessions, any legal actions, any delays: no protocol error ever arises, and both agree at the end."""

from __future__ import annotations

from collections import deque

from draftwire.protocol.errors import ErrorCode
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
    Prefix,
    Role,
    Welcome,
)
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import ConnectionState, Session, StreamState
from draftwire.protocol.sparse_q import SparseQ
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

VOCABULARY_SIZE = 300
LIMITS = Limits(max_context=500, max_streams=3, max_message_bytes=2048, max_draft_tokens=8, max_backlog=16)
CAPABILITIES = Capability.SPARSE_Q | Capability.PREFIXES
TOKENS = st.lists(st.integers(0, VOCABULARY_SIZE - 1), max_size=8).map(tuple)

DRAFTABLE = (StreamState.OPENING, StreamState.OPEN)


class Crossing(RuleBasedStateMachine):
    """A client and a verifier with a queue of frames in each direction."""

    def __init__(self) -> None:
        super().__init__()
        self.client, self.verifier = Session(Role.CLIENT), Session(Role.VERIFIER)
        self.up: deque[tuple[bytes, Message]] = deque()
        self.down: deque[tuple[bytes, Message]] = deque()
        self.rejection: set[int] = set()
        self.ended: list[int] = []

    def from_client(self, message: Message) -> None:
        self.up.append((self.client.send(message), message))

    def from_verifier(self, message: Message) -> None:
        self.down.append((self.verifier.send(message), message))

    def live(self, session: Session, *states: StreamState) -> list[int]:
        return [stream for stream in session.live_streams if session.stream_state(stream) in states]

    @initialize(shared=st.booleans())
    def shake_hands(self, shared: bool) -> None:
        fingerprint = bytes(16)
        self.from_client(Hello(capabilities=CAPABILITIES, fingerprint=fingerprint if shared else None))
        self.arrive_at_verifier()
        self.from_verifier(
            Welcome(
                capabilities=CAPABILITIES | Capability.TREES,
                fingerprint=fingerprint,
                target="t",
                vocabulary_size=VOCABULARY_SIZE,
                eos_ids=(),
                limits=LIMITS,
            )
        )
        self.arrive_at_client()

    # --- the client acts ---

    @precondition(
        lambda self: self.client.state is ConnectionState.READY and len(self.client.live_streams) < LIMITS.max_streams
    )
    @rule(tokens=TOKENS.filter(bool), rejection=st.booleans(), retain=st.booleans(), resume=st.booleans())
    def open(self, tokens: tuple[int, ...], rejection: bool, retain: bool, resume: bool) -> None:
        stream = self.client.next_stream
        prefix = Prefix(stream=self.ended[-1], length=3) if resume and self.ended else None
        if rejection:
            self.rejection.add(stream)
        self.from_client(
            Open(
                stream=stream,
                token_ids=tokens,
                prompt_length=1,
                params=SamplingParams(temperature=1.0, mode="rejection" if rejection else "coupled"),
                max_tokens=10,
                seed=7,
                prefix=prefix,
                retain=retain,
                drafting=self.client.drafting_allowed,
            )
        )

    @precondition(lambda self: self.client.drafting_allowed and self.live(self.client, *DRAFTABLE))
    @rule(data=st.data(), tokens=TOKENS, more=st.booleans())
    def draft(self, data: st.DataObject, tokens: tuple[int, ...], more: bool) -> None:
        stream = data.draw(st.sampled_from(self.live(self.client, *DRAFTABLE)))
        by_rejection = stream in self.rejection
        self.from_client(
            Draft(
                stream=stream,
                path=1,
                start=2,
                token_ids=tokens,
                confidences=() if by_rejection else (3,) * len(tokens),
                sent_at=9,
                continues=more,
                sparse_q=tuple(SparseQ((token,), (255,)) for token in tokens) if by_rejection else None,
            )
        )

    @precondition(lambda self: self.live(self.client, *DRAFTABLE))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.from_client(Cancel(stream=data.draw(st.sampled_from(self.live(self.client, *DRAFTABLE)))))

    # --- the verifier acts ---

    @precondition(lambda self: self.live(self.verifier, StreamState.OPENING))
    @rule(data=st.data())
    def admit(self, data: st.DataObject) -> None:
        self.from_verifier(Opened(stream=data.draw(st.sampled_from(self.live(self.verifier, StreamState.OPENING)))))

    @precondition(lambda self: self.live(self.verifier, StreamState.OPEN, StreamState.CANCELLING))
    @rule(data=st.data(), token=st.integers(0, VOCABULARY_SIZE - 1))
    def commit(self, data: st.DataObject, token: int) -> None:
        streams = self.live(self.verifier, StreamState.OPEN, StreamState.CANCELLING)
        self.from_verifier(Commit(stream=data.draw(st.sampled_from(streams)), path=0, accepted=0, token=token))

    @precondition(lambda self: self.live(self.verifier, StreamState.OPEN, StreamState.CANCELLING))
    @rule(data=st.data(), reason=st.sampled_from(EndReason))
    def end(self, data: st.DataObject, reason: EndReason) -> None:
        streams = self.live(self.verifier, StreamState.OPEN, StreamState.CANCELLING)
        self.from_verifier(End(stream=data.draw(st.sampled_from(streams)), reason=reason))

    @precondition(lambda self: self.verifier.live_streams)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        stream = data.draw(st.sampled_from(self.verifier.live_streams))
        self.from_verifier(Error(stream=stream, code=ErrorCode.INTERNAL))

    @precondition(lambda self: self.verifier.state is ConnectionState.READY and self.verifier.next_stream > 6)
    @rule()
    def shut_down(self) -> None:
        self.from_verifier(Error(stream=0, code=ErrorCode.SHUTTING_DOWN))

    # --- the network acts ---

    @precondition(lambda self: self.up)
    @rule()
    def arrive_at_verifier(self) -> None:
        frame, message = self.up.popleft()
        over = self.verifier.state is ConnectionState.CLOSED or (
            isinstance(message, Draft | Cancel) and self.verifier.stream_state(message.stream) is StreamState.ENDED
        )
        assert self.verifier.receive(frame) == ([] if over else [message])

    @precondition(lambda self: self.down)
    @rule()
    def arrive_at_client(self) -> None:
        frame, message = self.down.popleft()
        assert self.client.receive(frame) == [message]
        if isinstance(message, End):
            self.ended.append(message.stream)

    @precondition(lambda self: not self.up and not self.down)
    @rule()
    def idle(self) -> None:
        """Nothing is on its way, and once the connection is closed nothing ever will be."""

    def closed(self) -> bool:
        return ConnectionState.CLOSED in (self.client.state, self.verifier.state)

    @invariant()
    def the_verifier_never_has_more_streams_open_than_the_client(self) -> None:
        if not self.closed():
            assert set(self.verifier.live_streams) <= set(self.client.live_streams)
            assert self.verifier.next_stream <= self.client.next_stream

    def teardown(self) -> None:
        while self.up:
            self.arrive_at_verifier()
        for stream in self.verifier.live_streams:
            self.from_verifier(Error(stream=stream, code=ErrorCode.SHUTTING_DOWN))
        while self.down:
            self.arrive_at_client()
        assert self.client.state is self.verifier.state
        assert self.client.live_streams == self.verifier.live_streams == ()
        if not self.closed():
            assert self.client.next_stream == self.verifier.next_stream


Crossing.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestCrossing = Crossing.TestCase
