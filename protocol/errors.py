"""Every error Draftwire raises, as one tree.

Catch :class:`DraftwireError` to catch them all. Each message is one line that says what is wrong and what to do
about it, fit to be shown to the user of an app or of a command line as it stands.
"""

from __future__ import annotations

from enum import IntEnum, unique

__all__ = [
    "AuthenticationError",
    "BundleCorruptError",
    "BundleError",
    "BundleNotFoundError",
    "BusyError",
    "ConnectionLostError",
    "DrafterError",
    "DraftwireError",
    "ErrorCode",
    "ExportError",
    "FingerprintMismatchError",
    "FrameTooLargeError",
    "IllegalMessageError",
    "InternalVerifierError",
    "InvalidParameterError",
    "MalformedFrameError",
    "MissingDependencyError",
    "ModelNotFoundError",
    "NonFiniteLogitsError",
    "ParityError",
    "PromptTooLongError",
    "ProtocolError",
    "StreamError",
    "UnknownPrefixError",
    "UnsupportedModelError",
    "VerifierError",
    "VerifierRefusedError",
    "VerifierUnreachableError",
    "VersionMismatchError",
]


@unique
class ErrorCode(IntEnum):
    """What an ERROR frame says went wrong; numbers are part of the wire protocol."""

    MALFORMED_FRAME = 1
    ILLEGAL_MESSAGE = 2
    VERSION_MISMATCH = 3
    FRAME_TOO_LARGE = 4
    FINGERPRINT_MISMATCH = 5
    INVALID_PARAMETER = 6
    PROMPT_TOO_LONG = 7
    UNKNOWN_PREFIX = 8
    BUSY = 9
    NON_FINITE_LOGITS = 10
    INTERNAL = 11
    SHUTTING_DOWN = 12
    UNAUTHORIZED = 13
    IDLE_TIMEOUT = 14


class DraftwireError(Exception):
    """Base of every error raised by Draftwire.

    Attributes:
        retryable: the same may well succeed a little later, or at another verifier, without anybody changing anything.
        retry_after: seconds before which trying again is of no use, where that is known.
    """

    retryable: bool = False
    retry_after: float | None = None

    @property
    def headline(self) -> str:
        """What is wrong, without the advice, which messages give after a semicolon."""
        return str(self).partition("; ")[0]


class InvalidParameterError(DraftwireError, ValueError):
    """A value given by the caller is out of range; ``field`` names it."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class MissingDependencyError(DraftwireError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class ModelNotFoundError(DraftwireError):
    """A model id, folder or file does not exist or cannot be read as a model."""


class UnsupportedModelError(DraftwireError):
    """The model's architecture cannot be used here; the message says why and what to use instead."""


class NonFiniteLogitsError(DraftwireError):
    """A model produced NaN, or a row without a single finite logit."""


# --- the wire ---------------------------------------------------------------------------------------------------


class ProtocolError(DraftwireError):
    """The peer, or our own code, broke the wire protocol.

    ``stream`` is the stream it concerns, or None when the whole connection must close.
    """

    code = ErrorCode.ILLEGAL_MESSAGE

    def __init__(self, message: str, *, stream: int | None = None) -> None:
        super().__init__(message)
        self.stream = stream


class MalformedFrameError(ProtocolError):
    """Bytes that are no frame of this protocol."""

    code = ErrorCode.MALFORMED_FRAME


class FrameTooLargeError(ProtocolError):
    """A frame, or a count inside it, is over an agreed limit."""

    code = ErrorCode.FRAME_TOO_LARGE


class IllegalMessageError(ProtocolError):
    """A well-formed message that the transition table does not allow now."""

    code = ErrorCode.ILLEGAL_MESSAGE


class VersionMismatchError(ProtocolError):
    """The two ends do not speak the same protocol version or subprotocol."""

    code = ErrorCode.VERSION_MISMATCH


class FingerprintMismatchError(DraftwireError):
    """Draft and target do not share a vocabulary, so drafts would be garbage."""


# --- the verifier, as a client sees it --------------------------------------------------------------------------


class VerifierError(DraftwireError):
    """The verifier could not be used."""


class VerifierUnreachableError(VerifierError):
    """Nothing answered at the verifier's address."""

    retryable = True


class VerifierRefusedError(VerifierError):
    """The verifier answered and said no to the connection; ``retryable`` where it may say yes later."""

    def __init__(self, message: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after


class AuthenticationError(VerifierRefusedError):
    """The verifier did not accept the API key."""


class ConnectionLostError(VerifierError):
    """The connection ended while streams were open; what was committed has been delivered.

    Not ``retryable`` where it ended because of what was said on it, which would only be said again.
    """

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


_PASSING = frozenset({ErrorCode.BUSY, ErrorCode.INTERNAL, ErrorCode.SHUTTING_DOWN, ErrorCode.IDLE_TIMEOUT})
"""What a stream may end with and, opened again, go well."""


class StreamError(VerifierError):
    """The verifier ended a stream with an error; ``code`` says which, ``retry_after`` is in seconds or None."""

    def __init__(self, message: str, *, code: ErrorCode, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = code in _PASSING
        self.retry_after = retry_after


class PromptTooLongError(StreamError):
    """Prompt and requested tokens do not fit the target's context."""


class UnknownPrefixError(StreamError):
    """The verifier no longer holds the stream that a prompt refers to; send the whole prompt."""


class BusyError(StreamError):
    """The verifier is at its limit; try again after ``retry_after`` seconds."""


class InternalVerifierError(StreamError):
    """The verifier failed on this stream."""


# --- the device -------------------------------------------------------------------------------------------------


class BundleError(DraftwireError):
    """A draft bundle cannot be used."""


class BundleNotFoundError(BundleError):
    """The folder, or a file its manifest names, is missing."""


class BundleCorruptError(BundleError):
    """A file differs from what the manifest says, or the manifest cannot be read."""


class DrafterError(DraftwireError):
    """The draft model failed while loading or running."""


# --- export -----------------------------------------------------------------------------------------------------


class ExportError(DraftwireError):
    """A model could not be exported."""


class ParityError(ExportError):
    """The exported draft agrees too little with the model it was made from."""
