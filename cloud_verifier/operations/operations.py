"""All that watches a verifier, put together as the command line asks."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ...protocol.errors import MissingDependencyError
from ..engine.observer import Observer, Observers
from ..service.http import Route
from ..targets.target import TargetInfo
from .metrics import LogFigures, Metrics, Watched, WatchedEngine
from .request_log import RequestLog
from .tally import Tally

__all__ = ["Operations", "build_operations"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    """What the service is run with.

    Attributes:
        observer: for the engine.
        routes: for the server.
        tally: to be told of what the engine does not see: refusals at the door, switches of speculation.
        metrics: what is exposed.
    """

    observer: Observer
    routes: Sequence[Route]
    tally: Tally
    metrics: Metrics
    _closers: list[Callable[[], None]] = field(default_factory=list)

    def watch(
        self,
        engine: WatchedEngine,
        *,
        connections: Callable[[], int] | None = None,
        routes: Callable[[], Mapping[str, str]] | None = None,
        reloads: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Tell in the metrics how this engine, and what is around it, stand; see :class:`Watched`."""
        self.metrics.watch(Watched(engine=engine, connections=connections, routes=routes, reloads=reloads))

    def close(self) -> None:
        """Send what waits to be sent, within a few seconds, and end."""
        while self._closers:
            self._closers.pop()()


def build_operations(parsed: argparse.Namespace, info: TargetInfo, *, log: LogFigures | None = None) -> Operations:
    """Everything that the options of :func:`~.options.add_operations_options` ask for.

    Args:
        parsed: the command line.
        info: what is served.
        log: whether log lines were lost; of :func:`~.logs.logging_as_asked`.

    Raises:
        MissingDependencyError: traces are asked for, and the extra that brings them is not installed.
        VerifierError: the port for metrics cannot be had.
    """
    tally = Tally(by_key=parsed.metrics_by_key)
    metrics = Metrics(info, tally, log=log)
    observers: list[Observer] = [tally]
    closers: list[Callable[[], None]] = []
    if parsed.request_log:
        observers.append(RequestLog())
    if parsed.otel:
        tracing = _tracing(info)
        observers.append(tracing[0])
        closers.append(tracing[1])
    routes = metrics.routes()
    if parsed.metrics_port is not None:
        closers.append(metrics.serve(parsed.metrics_host, parsed.metrics_port))
        routes = []
    return Operations(observer=Observers(observers), routes=routes, tally=tally, metrics=metrics, _closers=closers)


def _tracing(info: TargetInfo) -> tuple[Observer, Callable[[], None]]:
    try:
        from .tracing import Tracing, exporter_from_environment  # needs an extra, which nobody else has to install
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"--otel needs {error.name}; install draftwire[otel] beside draftwire[cloud]"
        ) from None
    tracing = Tracing(model=info.name, exporter=exporter_from_environment())
    return tracing, tracing.close
