"""Sees out connections that have been silent too long, or that are asked to go."""

from __future__ import annotations

import asyncio
import contextlib

from ...protocol.errors import ErrorCode
from .connection import Connection
from .crowd import Guest
from .peer import Peer

__all__ = ["see_out"]

_GOING_AWAY, _POLICY_VIOLATION = 1001, 1008
"""Close codes of RFC 6455."""


async def see_out(connection: Connection, peer: Peer, guest: Guest) -> None:
    """Wait until a connection's time is up or its guest is dismissed; tell it why, and close its socket."""
    changed = asyncio.Event()
    reasons: list[str] = []

    def dismissed(why: str) -> None:
        reasons.append(why)
        changed.set()

    idleness = connection.idleness
    idleness.when_changed = changed.set
    guest.when_dismissed(dismissed)
    while not reasons and (remaining := idleness.remaining) > 0:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(remaining):
                await changed.wait()
        changed.clear()
    if reasons:
        connection.dismiss(reasons[0], ErrorCode.UNAUTHORIZED)
        await peer.finish(_POLICY_VIOLATION, b"the API key is no longer valid")
    else:
        connection.dismiss(idleness.reason, ErrorCode.IDLE_TIMEOUT)
        await peer.finish(_GOING_AWAY, b"idle")
