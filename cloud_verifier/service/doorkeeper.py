"""Who may come in: looks at a visitor's headers before anything else is done for it."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from ..engine.tenant import ANYBODY, Tenant
from .allowance import Allowance
from .config import Config, KeyRules
from .crowd import Crowd, Guest, address_group
from .http import Refusal, Visitor
from .idleness import Idleness
from .keys import KnownKey
from .origin import cross_origin_headers, is_allowed, preflight_headers
from .quota import Buckets

__all__ = ["Doorkeeper"]

logger = logging.getLogger(__name__)

_FAILURES_PER_MINUTE = 10.0
_ADDRESSES = 4096
_RETRY_SECONDS = 1.0
_KEY_FIELDS = frozenset({"key", "apikey", "token", "accesstoken", "auth", "authorization", "bearer", "secret"})
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
_TRACEPARENT = 55  # characters of the W3C header


class Doorkeeper:
    """Checks key, origin, route and numbers. In the event loop's thread alone.

    Args:
        config: what holds; :meth:`replace` sets it anew. By default everybody is let in.
        refused: is told a short name of why, once for each refusal.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: Config | None = None,
        *,
        refused: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or Config()
        self._keys = self._config.keyring()
        self._refused = refused
        self._clock = clock
        self._crowd = Crowd()
        self._requests = Buckets(most=_ADDRESSES, clock=clock)
        self._arrivals = Buckets(most=_ADDRESSES, clock=clock)
        self._failures = Buckets(most=_ADDRESSES, clock=clock)

    @property
    def config(self) -> Config:
        """What holds now."""
        return self._config

    @property
    def connections(self) -> int:
        """Connections and calls under way."""
        return len(self._crowd)

    def replace(self, config: Config) -> None:
        """Set everything anew. Whoever came in with a key that is there no more is asked to go."""
        self._config = config
        self._keys = config.keyring()
        for guest in self._crowd:
            if guest.key not in self._keys and len(self._keys):
                guest.dismiss("the API key is no longer valid; connect with another")

    def idleness(self) -> Idleness:
        """Watches a new connection."""
        return Idleness(
            hello_seconds=self._config.limits.hello_seconds,
            idle_seconds=lambda: self._config.limits.idle_seconds,
            clock=self._clock,
        )

    # --- at the door --------------------------------------------------------------------------------------------

    def admit(
        self, headers: Mapping[str, str], *, remote: str, route: str = "", query: Mapping[str, str] | None = None
    ) -> Visitor:
        """Whoever it is.

        Args:
            headers: names in lower case.
            remote: address.
            route: the traffic class that is asked for.
            query: of the URL.

        Raises:
            Refusal: it may not come in.
        """
        self._check_address(route, query or {})
        self._check_origin(headers)
        key = self._check_key(headers, remote)
        if route and route not in self._config.routes:
            raise self.refusal("route", 404, f"there is no route {route[:64]!r} here; leave it out, or ask for it")
        given = headers.get("x-request-id", "")
        return Visitor(
            tenant=self._tenant(key, remote),
            remote=remote,
            address=address_group(remote),
            request_id=given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8),
            traceparent=headers.get("traceparent", "")[:_TRACEPARENT],
            route=route,
            key=key,
            refused=self._refused,
            allowance=Allowance(
                tenant=lambda: self._tenant(key, remote),
                rules=lambda: self._rules(key),
                buckets=self._requests,
                name=_account(key, remote),
                refused=self._refused,
            ),
        )

    @contextmanager
    def connected(self, visitor: Visitor) -> Iterator[Guest]:
        """While a connection is open or a call under way; Refusal where there are too many."""
        guest = Guest(_account(visitor.key, visitor.remote), address_group(visitor.remote), visitor.key)
        self._check_numbers(guest, self._rules(visitor.key).max_connections)
        self._crowd.enter(guest)
        try:
            yield guest
        finally:
            self._crowd.leave(guest)

    def cross_origin(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Headers of the answer that let a browser hand it to the page; none where it may not, or none asks."""
        origin = headers.get("origin")
        return cross_origin_headers(origin) if origin is not None and self._allows(origin, headers) else {}

    def preflight(self, headers: Mapping[str, str], *, methods: str) -> dict[str, str]:
        """Headers of the answer to a browser that asks before it calls; Refusal where the page may not."""
        self._check_origin(headers)
        return preflight_headers(headers.get("origin", ""), headers, methods=methods)

    def count_refusal(self, why: str) -> None:
        """Somebody was refused without a word, for a reason that is fixed in the code."""
        self._refused(why)

    def refusal(self, why: str, status: int, text: str, *, retry_after: float | None = None) -> Refusal:
        """A refusal, counted; to be raised. ``why`` is fixed in the code."""
        self._refused(why)
        return Refusal(status, text, retry_after=retry_after)

    def check_body(self, what: str, length: int, *, most: int) -> None:
        """Refuse a body before anything is read of it.

        Args:
            what: is asked for, in words.
            length: that is declared; 1 where a body of unknown length comes.
            most: that is taken; 0 where none is.
        """
        if length > 0 and not most:
            raise self.refusal("unexpected_body", 400, f"{what} takes no body; leave it out")
        if length > most:
            raise self.too_large(most)

    def too_large(self, most: int) -> Refusal:
        """Of a body that is more than ``most`` bytes; to be raised."""
        return self.refusal("body_too_large", 413, f"the request is larger than {most} bytes; shorten it")

    # --- the checks ---------------------------------------------------------------------------------------------

    def _check_address(self, route: str, query: Mapping[str, str]) -> None:
        names = {name.lower().replace("_", "").replace("-", "") for name in query}
        said = filter(None, (route, *query, *query.values()))  # most say nothing, and need no look at all the keys
        if names & _KEY_FIELDS or any(self._keys.find(part) is not None for part in said):
            raise self.refusal(
                "key_in_url",
                400,
                "an API key in a URL ends up in logs and histories; send it in the header Authorization: Bearer, and "
                "replace this one",
            )

    def _check_origin(self, headers: Mapping[str, str]) -> None:
        origin = headers.get("origin")
        if origin is not None and not self._allows(origin, headers):
            raise self.refusal("origin", 403, "pages of this origin may not use this verifier (--allow-origin)")

    def _allows(self, origin: str, headers: Mapping[str, str]) -> bool:
        return is_allowed(origin, host=headers.get("host", ""), listed=self._config.origins, keyed=len(self._keys) > 0)

    def _check_key(self, headers: Mapping[str, str], remote: str) -> KnownKey | None:
        """A good key opens whatever came from its address before; only failures are slowed down."""
        if not len(self._keys):
            return None
        scheme, _, text = headers.get("authorization", "").partition(" ")
        shown = text.strip() if scheme.lower() == "bearer" else ""
        key = self._keys.find(shown)
        if key is not None:
            return key
        wait = self._failures.take(address_group(remote), _FAILURES_PER_MINUTE)
        if wait:
            raise self.refusal(
                "failed_keys", 429, "too many failed attempts from this address; try again later", retry_after=wait
            )
        logger.warning("%s was refused: %s API key", remote or "somebody", "a wrong" if shown else "no")
        if shown:
            raise self.refusal("unauthorized", 401, "the API key is not valid; check it")
        raise self.refusal("unauthorized", 401, "an API key is needed; send it in the header Authorization: Bearer")

    def _check_numbers(self, guest: Guest, most: int | None) -> None:
        limits, crowd = self._config.limits, self._crowd
        if len(crowd) >= limits.max_connections:
            raise self._busy("max_connections", 503, _in_use(limits.max_connections))
        if most is not None and crowd.of_name(guest.name) >= most:
            whose = "this API key" if guest.key is not None else "one address"
            raise self._busy("max_connections_per_key", 429, _in_use(most, of=f" of {whose}"))
        most = limits.max_connections_per_address
        if most is not None and crowd.of_group(guest.group) >= most:
            raise self._busy("max_connections_per_address", 429, _in_use(most, of=" of one address"))
        wait = self._arrivals.take(guest.group, limits.connections_per_minute)
        if wait:
            noun = "connection" if limits.connections_per_minute == 1 else "connections"
            text = f"more than {limits.connections_per_minute:g} {noun} a minute from one address"
            raise self._busy("connections_per_minute", 429, text, retry_after=wait)

    def _busy(self, limit: str, status: int, text: str, *, retry_after: float = _RETRY_SECONDS) -> Refusal:
        return self.refusal(limit, status, f"{text}; try again later", retry_after=retry_after)

    # --- whose limits -------------------------------------------------------------------------------------------

    def _tenant(self, key: KnownKey | None, remote: str) -> Tenant:
        if key is not None:
            return self._config.tenant(key.name)
        return self._config.tenant(ANYBODY.name, address=address_group(remote))

    def _rules(self, key: KnownKey | None) -> KeyRules:
        return self._config.rules_of(key.name if key is not None else ANYBODY.name)


def _account(key: KnownKey | None, remote: str) -> str:
    """What is counted as one: a key's owner, and without keys an address. No name of a key begins like an address."""
    return key.name if key is not None else f"from {address_group(remote)}"


def _in_use(most: int, *, of: str = "") -> str:
    return f"all {most} connections{of} are in use" if most > 1 else f"the one connection{of} is in use"
