"""Browsers: which pages may use the service, and what tells a browser so.

A browser says in ``Origin`` which page a request comes from, and no page can change that. Programs send none.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from ...protocol.errors import InvalidParameterError

__all__ = ["ANY_ORIGIN", "check_origin", "cross_origin_headers", "is_allowed", "preflight_headers"]

ANY_ORIGIN = "*"

_PORTS = {"http": 80, "https": 443}
_PREFLIGHT_SECONDS = "600"
_TOKENS = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?: *, *[A-Za-z0-9!#$%&'*+.^_`|~-]+)*")


def check_origin(text: str) -> str:
    """An origin as browsers send it, such as ``https://app.example``, or ``*``; InvalidParameterError otherwise."""
    if text == ANY_ORIGIN:
        return text
    try:
        parts = urlsplit(text)
        fine = parts.scheme and parts.netloc and not (parts.path or parts.query or parts.fragment or "@" in text)
        fine = fine and (parts.port is None or parts.port > 0) and text.isprintable() and " " not in text
    except ValueError:
        fine = False
    if not fine:
        raise InvalidParameterError(
            "origin", f"must look like https://app.example or http://localhost:5173, not {text!r}"
        )
    return text.lower()


def is_allowed(origin: str, *, host: str, listed: Collection[str], keyed: bool) -> bool:
    """Whether a page of ``origin`` may use the service that it calls ``host``.

    Args:
        origin: the header's value.
        host: the Host header's value. A page of the same origin may, with one exception: without keys a host *name*
            proves nothing, as any page can let its own name point to an address in the visitor's network.
        listed: origins that may whatever the host.
        keyed: whether a key is asked for besides.
    """
    if ANY_ORIGIN in listed or origin.lower() in listed:
        return True
    try:
        parts = urlsplit(origin)
        own = urlsplit(f"{parts.scheme}://{host}")
        same = (own.hostname, own.port or _PORTS.get(own.scheme)) == (
            parts.hostname,
            parts.port or _PORTS.get(parts.scheme),
        )
        return bool(parts.hostname) and same and (keyed or _is_address(parts.hostname or ""))
    except ValueError:
        return False


def cross_origin_headers(origin: str) -> dict[str, str]:
    """What lets the browser hand an answer to a page of an allowed origin."""
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Expose-Headers": "X-Request-Id, Retry-After",
        "Vary": "Origin",
    }


def preflight_headers(origin: str, asked: Mapping[str, str], *, methods: str) -> dict[str, str]:
    """The answer to a browser that asks, before the request itself, whether an allowed page may send it."""
    headers = {
        **cross_origin_headers(origin),
        "Access-Control-Allow-Methods": methods,
        "Access-Control-Max-Age": _PREFLIGHT_SECONDS,
    }
    names = asked.get("access-control-request-headers", "").strip()
    if _TOKENS.fullmatch(names):
        headers["Access-Control-Allow-Headers"] = names
    return headers


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
