"""The two messages that open a connection, and the limits that they agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codes import (
    MAX_AGENT_BYTES,
    MAX_TARGET_BYTES,
    MIN_MESSAGE_BYTES,
    NO_CAPABILITIES,
    PROTOCOL_VERSION,
    Capability,
    MessageType,
)
from .errors import ErrorCode, FrameTooLargeError, InvalidParameterError
from .fields import U31, U32, check_extensions, check_fingerprint, check_special_ids, check_text, check_unsigned

__all__ = ["Hello", "Limits", "Welcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the verifier takes; the same numbers bind both ends.

    Attributes:
        max_context: tokens of a stream, prompt and committed.
        max_streams: streams open at once on this connection.
        max_message_bytes: length of a frame in either direction.
        max_draft_tokens: token ids in one DRAFT.
        max_backlog: draft tokens of a stream held beyond its committed prefix.
    """

    max_context: int
    max_streams: int
    max_message_bytes: int
    max_draft_tokens: int
    max_backlog: int

    def __post_init__(self) -> None:
        check_unsigned("max_context", self.max_context, U31, 1)
        check_unsigned("max_streams", self.max_streams, U31, 1)
        check_unsigned("max_message_bytes", self.max_message_bytes, U31, MIN_MESSAGE_BYTES)
        check_unsigned("max_draft_tokens", self.max_draft_tokens, U31, 1)
        check_unsigned("max_backlog", self.max_backlog, U31, 1)

    def check_draft(self, count: int, stream: int | None) -> None:
        """Refuse a DRAFT of too many tokens.

        Raises:
            FrameTooLargeError: stating the limit.
        """
        if count > self.max_draft_tokens:
            raise FrameTooLargeError(
                f"DRAFT of {count} tokens; at most {self.max_draft_tokens} are allowed in one", stream=stream
            )

    def check_sequence(self, length: int, max_tokens: int, stream: int | None) -> None:
        """Refuse an OPEN of ``length`` tokens with ``max_tokens`` to follow that cannot fit the context.

        Raises:
            FrameTooLargeError: with the code PROMPT_TOO_LONG, stating the limit.
        """
        if length + max_tokens > self.max_context:
            error = FrameTooLargeError(
                f"{length} tokens and {max_tokens} to generate exceed the context of {self.max_context} tokens; "
                "shorten the prompt or ask for fewer",
                stream=stream,
            )
            error.code = ErrorCode.PROMPT_TOO_LONG
            raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The client's first message. ``fingerprint`` is its draft's vocabulary, None where it has no draft."""

    type: ClassVar[MessageType] = MessageType.HELLO
    version: int = PROTOCOL_VERSION
    capabilities: Capability = NO_CAPABILITIES
    fingerprint: bytes | None = None
    agent: str = ""
    extensions: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        check_unsigned("version", self.version, 256)
        check_unsigned("capabilities", self.capabilities, U32)
        if self.fingerprint is not None:
            check_fingerprint(self.fingerprint)
        check_text("agent", self.agent, MAX_AGENT_BYTES)
        check_extensions(self.extensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """The verifier's answer to HELLO.

    Attributes:
        target: the target model's name.
        vocabulary_size: every token id of the connection is below it; it fixes the width of packed ids.
        eos_ids: ids that end the target's text, for the client to use as stop ids.
    """

    type: ClassVar[MessageType] = MessageType.WELCOME
    version: int = PROTOCOL_VERSION
    capabilities: Capability = NO_CAPABILITIES
    fingerprint: bytes
    target: str
    vocabulary_size: int
    eos_ids: tuple[int, ...]
    limits: Limits
    extensions: tuple[tuple[int, bytes], ...] = ()

    def __post_init__(self) -> None:
        check_unsigned("version", self.version, 256)
        check_unsigned("capabilities", self.capabilities, U32)
        check_fingerprint(self.fingerprint)
        check_text("target", self.target, MAX_TARGET_BYTES)
        check_unsigned("vocabulary_size", self.vocabulary_size, U31, 2)
        check_special_ids("eos_ids", self.eos_ids)
        if self.eos_ids and max(self.eos_ids) >= self.vocabulary_size:
            raise InvalidParameterError("eos_ids", f"must be below the vocabulary size {self.vocabulary_size}")
        check_extensions(self.extensions)
