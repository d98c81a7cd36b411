"""Plain HTTP as the service's endpoints see it: a call comes in, a reply goes out. Knows no server library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from ..engine.tenant import ANYBODY, Tenant
from .allowance import UNLIMITED, Allowance
from .keys import KnownKey

__all__ = [
    "Call",
    "Handler",
    "Refusal",
    "Reply",
    "Route",
    "Visitor",
    "json_reply",
    "lower_names",
    "plain_refusal",
    "retry_headers",
]


def _not_counted(why: str) -> None:
    del why


@dataclass(frozen=True, slots=True, kw_only=True)
class Visitor:
    """Who is at the door.

    Attributes:
        tenant: whose key it showed.
        remote: its address, for logs.
        address: the same as it is counted, which may be a network.
        request_id: one for each connection and each call, in logs, traces and ``X-Request-Id``.
        traceparent: the W3C trace context it came with; empty for none.
        route: the traffic class it asked for, such as ``chat`` in ``/v1/verify/chat``; empty for none.
        key: it was let in with; None where none was asked for.
        allowance: what it may ask for; asked before each stream is opened.
        refused: to be told a short name of why, fixed in the code, where something it asks for is refused elsewhere
            than by the door, its allowance or the engine, which count their own.
    """

    tenant: Tenant = ANYBODY
    remote: str = ""
    address: str = ""
    request_id: str = ""
    traceparent: str = ""
    route: str = ""
    key: KnownKey | None = None
    allowance: Allowance = UNLIMITED
    refused: Callable[[str], None] = _not_counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request. Names of ``headers`` are in lower case; ``body`` is whole and within the size limit."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    visitor: Visitor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An answer. A ``body`` that is an iterator is sent piece by piece, and closed when the caller leaves."""

    body: bytes | AsyncIterator[bytes] = b""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(Exception):
    """A visitor is not let in, or a call not answered; ``status`` is HTTP's.

    Args:
        status: such as 401, 403, 413, 429 or 503.
        message: one line for the visitor: what is wrong and what to do.
        retry_after: seconds, where coming again may help.
    """

    def __init__(self, status: int, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


Handler: TypeAlias = Callable[[Call], Awaitable[Reply]]
"""Cancelled when the caller leaves."""


def lower_names(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with their names in lower case; several of one name are one with commas, as HTTP has it."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


def json_reply(value: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    """A reply in JSON."""
    return Reply(
        body=json.dumps(value).encode(), status=status, content_type="application/json", headers=dict(headers or {})
    )


def plain_refusal(refusal: Refusal) -> Reply:
    """A refusal as ``{"error": message}``."""
    return json_reply({"error": str(refusal)}, status=refusal.status, headers=retry_headers(refusal))


def retry_headers(refusal: Refusal) -> dict[str, str]:
    """``Retry-After`` in whole seconds, at least 1, and for refused keys what is asked for."""
    headers = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(max(1, round(refusal.retry_after + 0.5)))
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """An endpoint. ``public`` ones ask for no key; ``refuse`` says a refusal in the endpoint's own manner."""

    method: str
    path: str
    handler: Handler
    public: bool = False
    refuse: Callable[[Refusal], Reply] = plain_refusal
