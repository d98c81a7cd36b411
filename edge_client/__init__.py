"""The edge SDK: generate with a verifier in the cloud, guessed ahead by a draft on this device."""

from __future__ import annotations

from ..protocol.errors import DraftwireError
from .client import AsyncEdgeClient, Status
from .drafter import Drafter
from .events import Degraded, Event, Finished, Reconnecting, Result, RoundCompleted, TextDelta
from .stats import Stats
from .stream import AsyncStream
from .sync_client import EdgeClient, Stream

__all__ = [
    "AsyncEdgeClient",
    "AsyncStream",
    "Degraded",
    "Drafter",
    "DraftwireError",
    "EdgeClient",
    "Event",
    "Finished",
    "Reconnecting",
    "Result",
    "RoundCompleted",
    "Stats",
    "Status",
    "Stream",
    "TextDelta",
]
