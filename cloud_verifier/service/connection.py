"""One client's connection: frames on one side, the engine on the other. Knows no socket."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from ...protocol.codes import PROTOCOL_VERSION, Capability, Role
from ...protocol.errors import DraftwireError, ErrorCode, ProtocolError
from ...protocol.messages import Cancel, Draft, Error, Hello, Limits, Message, Open, Welcome
from ...protocol.session import Session
from ..engine.engine import Engine
from ..targets.target import TargetInfo
from .http import Visitor
from .idleness import Idleness

__all__ = ["CAPABILITIES", "Connection", "in_thread_of"]

logger = logging.getLogger(__name__)

CAPABILITIES = Capability.SPARSE_Q | Capability.PREFIXES


class Connection:
    """Owner of one client's streams.

    Args:
        visitor: whose it is.
        idleness: watches it; whoever owns the socket asks it, and ends the connection by :meth:`dismiss`.
        send: writes one frame; called in the event loop's thread.
        schedule: runs a function in the event loop's thread; called from any thread.
    """

    def __init__(
        self,
        engine: Engine,
        info: TargetInfo,
        limits: Limits,
        *,
        visitor: Visitor | None = None,
        idleness: Idleness | None = None,
        send: Callable[[bytes], None],
        schedule: Callable[[Callable[[], None]], None],
    ) -> None:
        self._engine = engine
        self._info = info
        self._limits = limits
        visitor = visitor or Visitor()
        self._visitor = visitor
        self.tenant = visitor.tenant
        self._allowance = visitor.allowance
        self.address = visitor.address
        self.route = visitor.route
        self.request_id = visitor.request_id
        self.traceparent = visitor.traceparent
        self.idleness = idleness or Idleness()
        self._send = send
        self._schedule = schedule
        self._session = Session(Role.VERIFIER)
        self._open = True
        self._outgoing: deque[Sequence[Message]] = deque()
        self._woken = False
        self.dismissed = False
        """Whether the verifier ends the connection, and its client has been told."""

    # --- from the client, in the event loop's thread ------------------------------------------------------------

    def receive(self, data: bytes | str) -> bool:
        """Take one WebSocket message. Returns False when the connection must be closed."""
        if not self._open:
            return False
        opened_next = self._session.next_stream
        try:
            messages = self._session.receive(data)
        except ProtocolError as error:
            if error.stream in (None, opened_next):  # others end a stream that was under way, which the engine counts
                self._visitor.refused(error.code.name.lower())
            return self._refuse(error)
        for message in messages:
            self._take(message)
        self._note()
        return True

    def _refuse(self, error: ProtocolError) -> bool:
        """Tell the peer what was wrong; only an error of one stream leaves the connection open."""
        refusal = Error.of(error.stream, error)
        self._transmit([refusal])
        if error.stream is None:
            return False
        self._engine.fail(self, refusal)
        return True

    def _take(self, message: Message) -> None:
        match message:
            case Hello():
                self._transmit([self._welcome()])
            case Open():
                self._open_stream(message)
            case Draft():
                self._engine.draft(self, message)
            case Cancel():
                self._engine.cancel(self, message.stream)
            case _:  # the session lets nothing else through
                raise AssertionError(message)

    def _open_stream(self, request: Open) -> None:
        try:
            self._allowance.ask(request)
        except DraftwireError as error:
            self._transmit([Error.of(request.stream, error)])
            return
        self.tenant = self._allowance.tenant or self.tenant
        self._engine.open(self, request)

    def _welcome(self) -> Welcome:
        return Welcome(
            version=PROTOCOL_VERSION,
            capabilities=CAPABILITIES,
            fingerprint=self._info.fingerprint,
            target=self._info.name,
            vocabulary_size=self._info.vocabulary_size,
            eos_ids=self._info.eos_ids,
            limits=self._limits,
        )

    def dismiss(self, reason: str, code: ErrorCode) -> None:
        """Tell the client that the connection ends, and why; the socket is for the caller to close."""
        self.dismissed = True
        self._transmit([Error(stream=0, code=code, message=reason)])
        self.closed()

    def closed(self) -> None:
        """The socket is gone: everything of this client is forgotten. May be said again."""
        if self._open:
            self._open = False
            self._engine.drop(self)

    @property
    def crowded(self) -> bool:
        """Whether the engine is so far behind that this client's socket is not to be read for now."""
        return self._engine.crowded(self)

    def when_room(self, action: Callable[[], None]) -> None:
        """Run ``action`` in the event loop's thread once the engine has caught up."""
        self._engine.when_room(self, lambda: self._schedule(action))

    # --- from the engine, in its thread -------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Message]) -> None:
        """Send what the engine says; see :class:`~..engine.stream.Owner`.

        One wake-up serves whatever comes before the event loop's turn. An engine that woke it for each commit could
        fill the pipe through which signals arrive as well, and they would be lost.
        """
        self._outgoing.append(messages)
        if not self._woken:
            self._woken = True
            self._schedule(self._flush)

    def _flush(self) -> None:
        self._woken = False  # before the look at what is there: what comes later wakes the loop again
        for _ in range(len(self._outgoing)):
            self._transmit(self._outgoing.popleft())

    def _transmit(self, messages: Sequence[Message]) -> None:
        if not self._open:
            return
        for message in messages:
            try:
                frame = self._session.send(message)
            except ProtocolError:  # about a stream that an ERROR of ours has ended meanwhile
                continue
            self._send(frame)
        self._note()

    def _note(self) -> None:
        session = self._session
        self.idleness.note(greeted=session.hello is not None, streams=bool(session.live_streams))


def in_thread_of(loop: asyncio.AbstractEventLoop) -> Callable[[Callable[[], None]], None]:
    """What runs functions in an event loop's thread; may be called from any."""

    def schedule(action: Callable[[], None]) -> None:
        try:
            loop.call_soon_threadsafe(action)
        except RuntimeError:  # the loop has closed under a last message
            logger.debug("message dropped: the event loop is closed")

    return schedule
