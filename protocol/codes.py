"""The numbers of the wire protocol: message types, capabilities, policies, end reasons, sizes that never change."""

from __future__ import annotations

from enum import Enum, IntEnum, IntFlag, unique
from typing import Literal

__all__ = [
    "COMMIT_ECHO",
    "COMMIT_TOKEN",
    "DRAFT_CONTINUES",
    "DRAFT_PARENTS",
    "DRAFT_SOURCE",
    "DRAFT_SPARSE_Q",
    "ERROR_RETRY",
    "FRAME_FLAGS",
    "HELLO_FINGERPRINT",
    "MAX_AGENT_BYTES",
    "MAX_ERROR_BYTES",
    "MAX_SPECIAL_IDS",
    "MAX_TARGET_BYTES",
    "MESSAGE_SENDER",
    "MIN_MESSAGE_BYTES",
    "NO_CAPABILITIES",
    "OPEN_DRAFTING",
    "OPEN_PREFIX",
    "OPEN_RETAIN",
    "PROTOCOL_VERSION",
    "SAMPLING_MODES",
    "SAMPLING_REALS",
    "SUBPROTOCOL",
    "Capability",
    "EndReason",
    "MessageType",
    "Policy",
    "Role",
]

PROTOCOL_VERSION = 1
SUBPROTOCOL = "draftwire.v1"

MAX_AGENT_BYTES = 64
MAX_TARGET_BYTES = 256
MAX_ERROR_BYTES = 500
MAX_SPECIAL_IDS = 256  # EOS ids in WELCOME, stop ids in OPEN
MIN_MESSAGE_BYTES = 1024  # the least max_message_bytes: every ERROR must fit


@unique
class Role(Enum):
    """The two ends of a connection."""

    CLIENT = "client"
    VERIFIER = "verifier"

    @property
    def peer(self) -> Role:
        """The other end."""
        return Role.VERIFIER if self is Role.CLIENT else Role.CLIENT


@unique
class MessageType(IntEnum):
    """The low nibble of a frame's first byte."""

    HELLO = 1
    OPEN = 2
    DRAFT = 3
    CANCEL = 4
    WELCOME = 8
    OPENED = 9
    COMMIT = 10
    ERROR = 11
    END = 12


class Capability(IntFlag):
    """What an end can do beyond the core; in force where HELLO and WELCOME both name it. Unknown bits are kept."""

    SPARSE_Q = 1
    TREES = 2
    SOURCES = 4
    PREFIXES = 8


NO_CAPABILITIES = Capability(0)


@unique
class Policy(IntEnum):
    """What the client would rather have: every token as soon as possible, or few target passes a token."""

    LATENCY = 0
    COST = 1


@unique
class EndReason(IntEnum):
    """Why a stream ended well: a stop id was committed, ``max_tokens`` were, or the client cancelled."""

    STOP = 0
    LENGTH = 1
    CANCELLED = 2


MESSAGE_SENDER: dict[MessageType, Role] = {
    MessageType.HELLO: Role.CLIENT,
    MessageType.OPEN: Role.CLIENT,
    MessageType.DRAFT: Role.CLIENT,
    MessageType.CANCEL: Role.CLIENT,
    MessageType.WELCOME: Role.VERIFIER,
    MessageType.OPENED: Role.VERIFIER,
    MessageType.COMMIT: Role.VERIFIER,
    MessageType.ERROR: Role.VERIFIER,
    MessageType.END: Role.VERIFIER,
}
"""The one role that may send each message."""

# Flags: the high nibble of a frame's first byte, by type.
HELLO_FINGERPRINT = 0x10
OPEN_PREFIX, OPEN_DRAFTING, OPEN_RETAIN = 0x10, 0x20, 0x40
DRAFT_CONTINUES, DRAFT_SPARSE_Q, DRAFT_PARENTS, DRAFT_SOURCE = 0x10, 0x20, 0x40, 0x80
COMMIT_TOKEN, COMMIT_ECHO = 0x10, 0x20
ERROR_RETRY = 0x10

FRAME_FLAGS: dict[MessageType, int] = {
    MessageType.HELLO: HELLO_FINGERPRINT,
    MessageType.OPEN: OPEN_PREFIX | OPEN_DRAFTING | OPEN_RETAIN,
    MessageType.DRAFT: DRAFT_CONTINUES | DRAFT_SPARSE_Q | DRAFT_PARENTS | DRAFT_SOURCE,
    MessageType.CANCEL: 0,
    MessageType.WELCOME: 0,
    MessageType.OPENED: 0,
    MessageType.COMMIT: COMMIT_TOKEN | COMMIT_ECHO,
    MessageType.ERROR: ERROR_RETRY,
    MessageType.END: 0,
}
"""The flags that each type knows; a frame with any other is malformed."""

SAMPLING_MODES: tuple[Literal["coupled", "rejection"], ...] = ("coupled", "rejection")
"""Sampling modes by their number in OPEN."""

SAMPLING_REALS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
"""Real-valued sampling parameters in the order that OPEN carries them."""
