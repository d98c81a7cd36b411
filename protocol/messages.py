"""The nine messages of the wire protocol: frozen, slotted, and valid from construction on.

A message that exists can be encoded. A field out of range is refused where it is given, by an
:class:`InvalidParameterError` that names it, so that neither a frame nor a model ever sees it.

Stream ids are chosen by the client, from 1, growing by one, never reused on a connection. Path ids are per stream, from
1, growing. Positions are absolute in the stream's sequence, prompt included, from 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from .clock import CLOCK_UNIT, clock_duration, clock_now, confidence, confidence_byte, rtt_seconds
from .codes import (
    MAX_AGENT_BYTES,
    MAX_ERROR_BYTES,
    MAX_SPECIAL_IDS,
    MAX_TARGET_BYTES,
    MESSAGE_SENDER,
    MIN_MESSAGE_BYTES,
    NO_CAPABILITIES,
    PROTOCOL_VERSION,
    SUBPROTOCOL,
    Capability,
    EndReason,
    MessageType,
    Policy,
    Role,
)
from .errors import (
    DraftwireError,
    ErrorCode,
    FingerprintMismatchError,
    InvalidParameterError,
    NonFiniteLogitsError,
    ProtocolError,
    StreamError,
)
from .fields import (
    U16,
    U31,
    U64,
    check_extensions,
    check_integers,
    check_special_ids,
    check_text,
    check_unsigned,
    plain_text,
)
from .handshake import Hello, Limits, Welcome
from .sampling import SamplingParams
from .sparse_q import SparseQ

__all__ = [
    "CLOCK_UNIT",
    "MAX_AGENT_BYTES",
    "MAX_ERROR_BYTES",
    "MAX_SPECIAL_IDS",
    "MAX_TARGET_BYTES",
    "MESSAGE_SENDER",
    "MIN_MESSAGE_BYTES",
    "NO_CAPABILITIES",
    "PROTOCOL_VERSION",
    "SUBPROTOCOL",
    "Cancel",
    "Capability",
    "Commit",
    "Draft",
    "End",
    "EndReason",
    "Error",
    "Hello",
    "Limits",
    "Message",
    "MessageType",
    "Open",
    "Opened",
    "Policy",
    "Prefix",
    "Role",
    "StreamMessage",
    "Welcome",
    "clock_duration",
    "clock_now",
    "confidence",
    "confidence_byte",
    "rtt_seconds",
]


# --- the client's messages on a stream --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """The first ``length`` tokens of ``stream``, ended and retained on this connection."""

    stream: int
    length: int

    def __post_init__(self) -> None:
        check_unsigned("prefix.stream", self.stream, at_least=1)
        check_unsigned("prefix.length", self.length, U31, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Start a stream, or resume one that a lost connection cut off.

    Attributes:
        token_ids: prompt, then what was already committed when resuming; with ``prefix`` only what follows it.
        prompt_length: how many tokens of the whole sequence, prefix included, are prompt.
        max_tokens: still to be committed.
        seed: of the shared noise, 64 bits.
        stop_ids: ids that end the stream when committed; none means that only ``max_tokens`` ends it.
        drafting: whether drafts may be expected; a hint, not a promise.
        retain: whether the verifier should keep the stream's KV cache after END for a later prefix.
    """

    type: ClassVar[MessageType] = MessageType.OPEN
    stream: int
    token_ids: tuple[int, ...]
    prompt_length: int
    params: SamplingParams
    max_tokens: int
    seed: int
    policy: Policy = Policy.LATENCY
    stop_ids: tuple[int, ...] = ()
    prefix: Prefix | None = None
    drafting: bool = False
    retain: bool = False
    extensions: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)
        check_integers("token_ids", self.token_ids)
        if not self.token_ids:
            raise InvalidParameterError("token_ids", "must hold at least one token")
        check_unsigned("prompt_length", self.prompt_length, self.length + 1, 1)
        check_unsigned("max_tokens", self.max_tokens, U31, 1)
        check_unsigned("seed", self.seed, U64)
        check_special_ids("stop_ids", self.stop_ids)
        if self.prefix is not None and self.prefix.stream >= self.stream:
            raise InvalidParameterError("prefix.stream", "must be an earlier stream of this connection")
        check_extensions(self.extensions)

    @property
    def length(self) -> int:
        """Tokens of the whole sequence so far, prefix included; the position of the first token to be committed."""
        return len(self.token_ids) + (self.prefix.length if self.prefix is not None else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Draft tokens of one path, from position ``start`` on.

    Attributes:
        confidences: for each token the byte of :func:`confidence_byte`; empty with
            ``sparse_q``, which says it better.
        sent_at: the client's wrapping 16-bit clock.
        continues: more tokens of this path will follow in a later frame. An empty frame that clears it is allowed.
        sparse_q: rejection mode: for each token the distribution it was drawn from. Capability SPARSE_Q.
        parents: tree drafts: for each token 0 where it follows the token at ``start - 1``, else one plus the index
            in this frame of the token it follows. None is a chain. Capability TREES.
        source: which of several drafters made the tokens. Capability SOURCES unless 0.
    """

    type: ClassVar[MessageType] = MessageType.DRAFT
    stream: int
    path: int
    start: int
    token_ids: tuple[int, ...]
    confidences: tuple[int, ...] = ()
    sent_at: int
    continues: bool = False
    sparse_q: tuple[SparseQ, ...] | None = None
    parents: tuple[int, ...] | None = None
    source: int = 0

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)
        check_unsigned("path", self.path, at_least=1)
        check_unsigned("start", self.start, U31, 1)
        check_integers("token_ids", self.token_ids)
        check_integers("confidences", self.confidences, 256)
        check_unsigned("sent_at", self.sent_at, U16)
        check_unsigned("source", self.source, 256)
        if len(self.confidences) != (len(self.token_ids) if self.sparse_q is None else 0):
            raise InvalidParameterError("confidences", "must be one for each token, or none with sparse_q")
        if self.sparse_q is not None:
            self._check_sparse_q(self.sparse_q)
        if self.parents is not None:
            self._check_parents(self.parents)

    def _check_sparse_q(self, sparse_q: tuple[SparseQ, ...]) -> None:
        if len(sparse_q) != len(self.token_ids):
            raise InvalidParameterError("sparse_q", "must be one for each token")
        for token, q in zip(self.token_ids, sparse_q, strict=True):
            if token not in q.ids:
                raise InvalidParameterError("sparse_q", f"token {token} is not in its own draft distribution")

    def _check_parents(self, parents: tuple[int, ...]) -> None:
        check_integers("parents", parents)
        if len(parents) != len(self.token_ids) or any(parent > index for index, parent in enumerate(parents)):
            raise InvalidParameterError("parents", "must be one for each token, naming the root or an earlier token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End the stream now; the verifier answers with END."""

    type: ClassVar[MessageType] = MessageType.CANCEL
    stream: int

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)


# --- the verifier's messages on a stream ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The stream is admitted; ``cached`` of its tokens were in the KV cache already."""

    type: ClassVar[MessageType] = MessageType.OPENED
    stream: int
    cached: int = 0

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)
        check_unsigned("cached", self.cached, U31)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """``accepted`` draft tokens of ``path``, then exactly one ``token``, are final.

    Attributes:
        path: the path that ``accepted`` refers to; 0 where no draft has arrived yet.
        token: the last committed token: recovered, bonus or run-ahead, or the accepted draft token that ends the
            stream. None only where a bonus token is withheld.
        echo: ``sent_at`` of the latest DRAFT taken into the step; None where it has been echoed already or none came.
        queued: how long that DRAFT waited for the step, in clock units; 0 without an echo.
        computed: how long the step took, in clock units.
    """

    type: ClassVar[MessageType] = MessageType.COMMIT
    stream: int
    path: int
    accepted: int
    token: int | None
    echo: int | None = None
    queued: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)
        check_unsigned("path", self.path)
        check_unsigned("accepted", self.accepted, U31)
        if self.token is not None:
            check_unsigned("token", self.token, U31)
        elif not self.accepted:
            raise InvalidParameterError("token", "may be withheld only where draft tokens are accepted")
        if self.accepted and not self.path:
            raise InvalidParameterError("path", "must be named where draft tokens are accepted")
        if self.echo is not None:
            check_unsigned("echo", self.echo, U16)
        check_unsigned("queued", self.queued)
        check_unsigned("computed", self.computed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Error:
    """A stream, or with ``stream`` 0 the connection, has failed and is over. ``message`` is one line for people."""

    type: ClassVar[MessageType] = MessageType.ERROR
    stream: int
    code: ErrorCode
    message: str = ""
    retry_after_ms: int | None = None

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream)
        check_text("message", self.message, MAX_ERROR_BYTES)
        if self.retry_after_ms is not None:
            check_unsigned("retry_after_ms", self.retry_after_ms)

    @classmethod
    def of(
        cls,
        stream: int | None,
        cause: BaseException | str,
        *,
        code: ErrorCode | None = None,
        retry_after_ms: int | None = None,
    ) -> Error:
        """Make an ERROR of an exception or a text, shortened to fit; ``stream`` None or 0 is the connection.

        The text of an exception that is not ours stays here: it may hold what a client must not see.
        """
        if isinstance(cause, StreamError) and cause.retry_after is not None and retry_after_ms is None:
            retry_after_ms = max(0, round(cause.retry_after * 1000))
        if isinstance(cause, BaseException) and not isinstance(cause, DraftwireError):
            text = "the verifier failed on this; try again, and report it if it happens again"
        else:
            text = str(cause)
        return cls(
            stream=stream or 0,
            code=code if code is not None else _code_of(cause),
            message=_shorten(text),
            retry_after_ms=retry_after_ms,
        )


def _code_of(cause: BaseException | str) -> ErrorCode:
    if isinstance(cause, ProtocolError | StreamError):
        return cause.code
    if isinstance(cause, InvalidParameterError):
        return ErrorCode.INVALID_PARAMETER
    if isinstance(cause, FingerprintMismatchError):
        return ErrorCode.FINGERPRINT_MISMATCH
    if isinstance(cause, NonFiniteLogitsError):
        return ErrorCode.NON_FINITE_LOGITS
    return ErrorCode.INTERNAL


def _shorten(text: str) -> str:
    """One line of at most MAX_ERROR_BYTES of UTF-8, cut between characters."""
    encoded = " ".join(plain_text(text).split()).encode("utf-8", "replace")
    if len(encoded) <= MAX_ERROR_BYTES:
        return encoded.decode("utf-8")
    return encoded[: MAX_ERROR_BYTES - 3].decode("utf-8", "ignore") + "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The stream has ended well; the counters are of its whole life at this verifier.

    Attributes:
        prompt_tokens: tokens of the sequence at OPEN that were prompt.
        committed_tokens: tokens this stream committed, the final one included.
        drafted_tokens: draft tokens that were verified, accepted or not.
        accepted_tokens: those accepted and committed.
        target_passes: steps of the target that this stream took part in, prefill excluded.
        run_ahead_tokens: tokens committed by steps that had no draft of a stream opened with ``drafting``.
    """

    type: ClassVar[MessageType] = MessageType.END
    stream: int
    reason: EndReason
    prompt_tokens: int = 0
    committed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    target_passes: int = 0
    run_ahead_tokens: int = 0

    def __post_init__(self) -> None:
        check_unsigned("stream", self.stream, at_least=1)
        check_unsigned("prompt_tokens", self.prompt_tokens)
        check_unsigned("committed_tokens", self.committed_tokens)
        check_unsigned("drafted_tokens", self.drafted_tokens)
        check_unsigned("accepted_tokens", self.accepted_tokens)
        check_unsigned("target_passes", self.target_passes)
        check_unsigned("run_ahead_tokens", self.run_ahead_tokens)


StreamMessage: TypeAlias = Open | Draft | Cancel | Opened | Commit | Error | End
"""The messages that carry a stream id; in ERROR it may be 0, the connection."""

Message: TypeAlias = Hello | Welcome | StreamMessage
"""Any message."""
