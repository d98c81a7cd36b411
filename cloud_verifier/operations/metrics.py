"""The door to Prometheus: ``/metrics``, on the service's port or on one of its own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ...protocol.errors import VerifierError
from ..engine.observer import EngineGauges
from ..service.http import Call, Reply, Route
from ..targets.target import TargetInfo
from .families import ENGINE_COUNTERS, ENGINE_GAUGES, PREFIX, ROUTE_STATES
from .instruments import Family, Labels, Spread
from .tally import Tally

__all__ = ["LogFigures", "Metrics", "Watched", "WatchedEngine"]

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 2.0


class WatchedEngine(Protocol):
    """What is asked of the engine at each scrape."""

    def gauges(self) -> EngineGauges:
        """How things stand."""

    @property
    def busy_since(self) -> float | None:
        """When the step in progress began (monotonic seconds); None between steps."""


class LogFigures(Protocol):
    """What is asked of the log at each scrape."""

    errors: int
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is asked at each scrape how it stands; what is None is not told.

    Attributes:
        engine: itself.
        connections: how many WebSockets are open.
        routes: the state of each route's guardrail, one of ``ROUTE_STATES``; the route without a name is empty.
        reloads: of the configuration, those that were done and those that failed.
    """

    engine: WatchedEngine
    connections: Callable[[], int] | None = None
    routes: Callable[[], Mapping[str, str]] | None = None
    reloads: Callable[[], tuple[int, int]] | None = None


class Metrics(Collector):
    """Tells a tally, and how the engine stands, in Prometheus' form.

    Each has a registry of its own, so that several verifiers fit into one process.

    Args:
        info: what is served.
        tally: what was counted.
        log: whether log lines were lost.
    """

    def __init__(self, info: TargetInfo, tally: Tally, *, log: LogFigures | None = None) -> None:
        self._info = info
        self._tally = tally
        self._log = log
        self._watched: Watched | None = None
        self.port: int | None = None
        """The port of its own, where there is one."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)

    def watch(self, watched: Watched) -> None:
        """Tell from now on how this stands."""
        self._watched = watched

    def routes(self) -> list[Route]:
        """The endpoint. It asks for no key: its numbers name nobody, unless shares by key are counted."""
        return [Route(method="GET", path="/metrics", handler=self._scrape, public=True)]

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serve on a port of its own, in a thread that answers whatever the service does. Returns what ends it."""
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            problem = error.strerror or str(error)
            raise VerifierError(f"cannot serve metrics on {host}:{port}: {problem}; choose another port") from None

        self.port = server.server_port
        where = f"[{host}]" if ":" in host else host
        logger.info("metrics are at http://%s:%d/metrics", where, self.port)  # port 0 has become another

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join(_CLOSE_SECONDS)

        return close

    async def _scrape(self, call: Call) -> Reply:
        encode, content_type = choose_encoder(call.headers.get("accept", ""))
        return Reply(body=await asyncio.to_thread(encode, self._registry), content_type=content_type)

    # --- for the registry ---------------------------------------------------------------------------------------

    def collect(self) -> Iterator[Metric]:
        """All metrics, as of now."""
        counters, distributions = self._tally.read()
        for family, values in counters:
            yield _counter(family, values)
        for family, spreads in distributions:
            yield _histogram(family, spreads)
        if self._log is not None:
            yield _counter(ENGINE_COUNTERS["log_errors"], {(): self._log.errors})
            yield _counter(ENGINE_COUNTERS["log_dropped"], {(): self._log.dropped})
        if self._watched is not None:
            yield from _engine(self._watched.engine)
            yield from _service(self._watched)
        info = self._info
        build = (metadata.version("draftwire"), info.name, info.dtype, info.device)
        yield _gauge(ENGINE_GAUGES["build_info"], {build: 1})


def _engine(engine: WatchedEngine) -> Iterator[Metric]:
    """How the engine stands."""
    gauges, since = engine.gauges(), engine.busy_since
    now: dict[str, float] = {
        "num_requests_running": gauges.running,
        "num_requests_waiting": gauges.waiting,
        "kv_cache_used_bytes": gauges.kv_used_bytes,
        "prefix_cache_tokens": gauges.prefix_tokens,
        "draining": int(gauges.draining),
        "step_in_progress_seconds": 0.0 if since is None else max(0.0, time.monotonic() - since),
    }
    if gauges.kv_total_bytes:
        now["kv_cache_limit_bytes"] = gauges.kv_total_bytes
        now["kv_cache_usage_perc"] = gauges.kv_used_bytes / gauges.kv_total_bytes
    for name, value in now.items():
        yield _gauge(ENGINE_GAUGES[name], {(): value})
    yield _counter(ENGINE_COUNTERS["prefix_cache_queries"], {(): gauges.prefix_queried})
    yield _counter(ENGINE_COUNTERS["prefix_cache_hits"], {(): gauges.prefix_found})


def _service(watched: Watched) -> Iterator[Metric]:
    """How stands what is around the engine."""
    if watched.connections is not None:
        yield _gauge(ENGINE_GAUGES["connections"], {(): watched.connections()})
    if watched.routes is not None:
        states: dict[Labels, float] = {
            (route or "default", state): int(state == now)
            for route, now in watched.routes().items()
            for state in ROUTE_STATES
        }
        yield _gauge(ENGINE_GAUGES["speculation_state"], states)
    if watched.reloads is not None:
        done, failed = watched.reloads()
        yield _counter(ENGINE_COUNTERS["config_reloads"], {("done",): done, ("failed",): failed})


def _counter(family: Family, values: Mapping[Labels, float]) -> Metric:
    metric = CounterMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric


def _gauge(family: Family, values: Mapping[Labels, float]) -> Metric:
    metric = GaugeMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
    for labels, value in values.items():
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Family, spreads: Mapping[Labels, Spread]) -> Metric:
    metric = HistogramMetricFamily(PREFIX + family.name, family.help, labels=family.labels)
    bounds = [*(str(float(bound)) for bound in family.bounds), "+Inf"]
    for labels, spread in spreads.items():
        cumulative = list(zip(bounds, accumulate(spread.buckets), strict=True))
        metric.add_metric(labels, cumulative, spread.total)
    return metric
