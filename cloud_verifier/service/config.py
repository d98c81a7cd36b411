"""What an operator has set for the door: limits, keys, routes, origins, certificates, guardrails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from ..engine.tenant import Tenant
from ..guardrails.rule import ON, Rule
from ..guardrails.thresholds import Thresholds
from .keys import Keyring

__all__ = ["Config", "DoorLimits", "KeyRules", "RouteRules", "TlsFiles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """Limits at the door; None is no limit. Those "per key" are per address where no keys are asked for.

    Attributes:
        max_connections: WebSockets and HTTP calls at once. Sockets that are neither have places of their own, see
            :class:`~.entrance.Entrance`.
        max_connections_per_key: of these, each key's.
        max_connections_per_address: of these, each address's; an IPv6 address stands for its /64 network.
        connections_per_minute: WebSockets and HTTP calls begun from one address.
        requests_per_minute: streams asked for by one key, over either protocol.
        max_streams_per_key: streams that one key may have open.
        max_prompt_tokens, max_output_tokens: of one stream.
        idle_seconds: how long a connection may be without a stream; 0 for ever.
        hello_seconds: how long a new connection has to say HELLO, and a socket to ask for anything, a TLS handshake
            included.
    """

    max_connections: int = 512
    max_connections_per_key: int | None = None
    max_connections_per_address: int | None = None
    connections_per_minute: float | None = None
    requests_per_minute: float | None = None
    max_streams_per_key: int | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    idle_seconds: float = 600.0
    hello_seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRules:
    """What is set for the keys of one name; None leaves it to :class:`DoorLimits`."""

    digests: tuple[str, ...] = ()
    max_streams: int | None = None
    max_connections: int | None = None
    requests_per_minute: float | None = None
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    speculation: Rule = ON


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRules:
    """What is set for one traffic class; ``thresholds`` of its own where any were given."""

    speculation: Rule = ON
    thresholds: Thresholds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """A certificate with those that vouch for it, and its private key, in PEM."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything. ``routes`` are by name, the one without a name being ``""``; ``origins`` as browsers send them."""

    limits: DoorLimits = field(default_factory=DoorLimits)
    keys: Mapping[str, KeyRules] = field(default_factory=dict)
    routes: Mapping[str, RouteRules] = field(default_factory=dict)
    origins: frozenset[str] = frozenset()
    tls: TlsFiles | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    def keyring(self) -> Keyring:
        """All keys; none means that everybody is let in."""
        return Keyring({name: rules.digests for name, rules in self.keys.items()})

    def rules_of(self, name: str) -> KeyRules:
        """What holds for a key's owner, the general limits filled in."""
        rules, limits = self.keys.get(name, KeyRules()), self.limits
        return replace(
            rules,
            max_streams=_given(rules.max_streams, limits.max_streams_per_key),
            max_connections=_given(rules.max_connections, limits.max_connections_per_key),
            requests_per_minute=_given(rules.requests_per_minute, limits.requests_per_minute),
            max_prompt_tokens=_given(rules.max_prompt_tokens, limits.max_prompt_tokens),
            max_output_tokens=_given(rules.max_output_tokens, limits.max_output_tokens),
        )

    def tenant(self, name: str, *, address: str = "") -> Tenant:
        """The engine's view of a key's owner."""
        return Tenant(name=name, address=address, max_streams=self.rules_of(name).max_streams)

    def with_keys(self, digests: Mapping[str, list[str]]) -> Config:
        """The same with more keys, which join those of the same name."""
        keys = dict(self.keys)
        for name, more in digests.items():
            rules = keys.get(name, KeyRules())
            keys[name] = replace(rules, digests=(*rules.digests, *more))
        return replace(self, keys=keys)


T = TypeVar("T")


def _given(own: T | None, general: T | None) -> T | None:
    return general if own is None else own
