"""Decides for each stream whether its drafts may be used: by rule of its route and key, and by what was measured."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from ...protocol.messages import Open
from ..engine.observer import CommitReport, Observer
from ..engine.speculation import Speculation
from ..engine.stream import Owner, VerifierStream
from .breaker import Breaker, State, Switch
from .rule import ON, Rule, draw_of, strictest
from .thresholds import Thresholds
from .timing import TokenTiming
from .window import Sample

__all__ = ["Guardrails"]

logger = logging.getLogger(__name__)

_FAULTS = frozenset({"internal", "non_finite_logits"})
"""Outcomes that are the verifier's fault. Those of clients must not count: one client could trip a route for all."""


class Guardrails:
    """For all routes and keys. :meth:`decide` and the observer are used from the engine's thread, the rest from any.

    Rules of a key and of its route, and what the route's figures say, are all heeded: off before shadow before on.

    Args:
        routes: rules by name; the one without a name is ``""``. Other routes have none, and share its figures.
        keys: rules by the name of a key's owner.
        thresholds: of every route that has none of its own.
        route_thresholds: of those that have.
        switched: called once for each change with route, new state and reason, all of few different values.
    """

    def __init__(
        self,
        *,
        routes: Mapping[str, Rule] | None = None,
        keys: Mapping[str, Rule] | None = None,
        thresholds: Thresholds | None = None,
        route_thresholds: Mapping[str, Thresholds] | None = None,
        switched: Callable[[str, str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.observer: Observer = _StreamWatcher(self)
        """To be told everything by the engine."""
        self._switched = switched
        self._clock = clock
        self._lock = threading.Lock()
        self._breakers: dict[str, Breaker] = {}
        self.replace(routes=routes, keys=keys, thresholds=thresholds, route_thresholds=route_thresholds)

    def replace(
        self,
        *,
        routes: Mapping[str, Rule] | None = None,
        keys: Mapping[str, Rule] | None = None,
        thresholds: Thresholds | None = None,
        route_thresholds: Mapping[str, Thresholds] | None = None,
    ) -> None:
        """Set everything anew for streams opened from now on; what was measured of routes that stay is kept."""
        general, own = thresholds or Thresholds(), route_thresholds or {}
        with self._lock:
            self._routes = {"": ON, **(routes or {})}
            self._keys = dict(keys or {})
            old, self._breakers = self._breakers, {}
            for route in self._routes:
                breaker = self._breakers[route] = old.get(route) or Breaker(own.get(route, general))
                breaker.thresholds = own.get(route, general)

    def states(self) -> dict[str, State]:
        """How each route stands."""
        with self._lock:
            return {route: breaker.state for route, breaker in self._breakers.items()}

    def decide(self, owner: Owner, request: Open) -> Speculation:
        """What becomes of a new stream's drafts. The same stream gets the same part of every share."""
        named = (owner.request_id, request.stream, request.seed)
        draw, chance = draw_of(*named), draw_of(*named, purpose="breaker")
        with self._lock:
            route = owner.route if owner.route in self._breakers else ""
            breaker, rules = self._breakers[route], (self._routes[route], self._keys.get(owner.tenant.name, ON))
            switch = breaker.look(self._clock()) if breaker.thresholds.watches else None
            measured = breaker.decide(chance) if breaker.thresholds.watches else Speculation.ON
        self._tell(route, switch)
        return strictest([measured, *(rule.decide(draw) for rule in rules)])

    def record(self, stream: VerifierStream, outcome: str, tpot: float | None) -> None:
        """A stream has ended."""
        counters, route = stream.counters, stream.owner.route
        sample = Sample(
            at=self._clock(),
            drafted=counters.drafted,
            accepted=counters.accepted,
            tpot=tpot,
            failed=outcome in _FAULTS,
        )
        with self._lock:
            route = route if route in self._breakers else ""
            breaker = self._breakers[route]
            if not breaker.thresholds.watches:
                return
            switch = breaker.record(sample, stream.speculation if stream.drafting else Speculation.OFF)
        self._tell(route, switch)

    def _tell(self, route: str, switch: Switch | None) -> None:
        if switch is None:
            return
        level = logging.WARNING if switch.to is State.TRIPPED else logging.INFO
        logger.log(level, "route %r: speculation is %s (%s): %s", route, switch.to.value, switch.reason, switch.detail)
        if self._switched is not None:
            self._switched(route, switch.to.value, switch.reason)


class _StreamWatcher(Observer):
    """Times each stream while it runs, and reports it when it is over."""

    def __init__(self, guardrails: Guardrails) -> None:
        self._guardrails = guardrails
        self._timings: dict[int, TokenTiming] = {}

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """See :class:`Observer`."""
        del waited
        self._timings[id(stream)] = TokenTiming()

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        timing = self._timings.get(id(stream))
        if timing is not None:
            timing.committed(report)

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        timing = self._timings.pop(id(stream), None)
        self._guardrails.record(stream, outcome, timing.tpot(stream) if timing is not None else None)
