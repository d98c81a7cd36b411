"""Who may come in: looks at a visitor's headers before anything else is done for it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from .http import Visitor

__all__ = ["Doorkeeper"]


class Doorkeeper:
    """Lets everybody in."""

    def admit(self, headers: Mapping[str, str], *, remote: str, route: str = "") -> Visitor:
        """Whoever it is; Refusal where it may not come in. Names of ``headers`` are in lower case."""
        return Visitor(remote=remote, request_id=headers.get("x-request-id") or secrets.token_hex(8), route=route)

    @contextmanager
    def connected(self, visitor: Visitor) -> Iterator[None]:
        """While a WebSocket is open; Refusal where there are too many."""
        del visitor
        yield
