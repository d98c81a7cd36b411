"""What /metrics exposes when everything has happened, and what a query asks for."""

from __future__ import annotations

import re
from functools import cache

from draftwire.cloud_verifier.engine.observer import EngineGauges, Observer
from draftwire.cloud_verifier.operations.metrics import Metrics, Watched
from draftwire.cloud_verifier.operations.tally import Tally
from prometheus_client.metrics_core import Metric

from ..cloud_verifier.operations.streams import INFO, stream_of

_WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset"}
_FUNCTIONS = {"sum", "count", "max", "min", "avg", "rate", "increase", "histogram_quantile", "label_values", "topk"}


class _Engine:
    """Stands somehow."""

    busy_since = None

    def gauges(self) -> EngineGauges:
        return EngineGauges(
            running=1,
            waiting=0,
            kv_used_bytes=1,
            kv_total_bytes=2,
            prefix_tokens=3,
            prefix_queried=4,
            prefix_found=5,
            draining=False,
        )


class _Log:
    errors = 0
    dropped = 0


def _one_stream(observer: Observer) -> None:
    stream = stream_of()
    observer.opened(stream, waited=0.0)
    observer.ended(stream, "stop")


@cache
def families() -> tuple[Metric, ...]:
    """All families that a verifier with every option exposes, those of its process included."""
    tally = Tally(by_key=True)
    _one_stream(tally)
    tally.speculation_switched("chat", "off", "acceptance")
    metrics = Metrics(INFO, tally, log=_Log())
    metrics.watch(
        Watched(engine=_Engine(), connections=lambda: 1, routes=lambda: {"": "healthy"}, reloads=lambda: (0, 0))
    )
    return tuple(metrics._registry.collect())


def samples() -> dict[str, set[str]]:
    """Names of samples as Prometheus stores them, and their labels; ``up`` is Prometheus' own."""
    found: dict[str, set[str]] = {"up": set()}
    for family in families():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def asked_for(query: str) -> tuple[set[str], set[str]]:
    """Names of metrics in a query, and of labels that it matches or groups by."""
    labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)\s*\"", query))
    for group in re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", query):
        labels |= {name.strip() for name in group.split(",")}
    bare = re.sub(r"\b(?:by|without|on|ignoring)\s*\([^)]*\)", " ", query)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", bare)
    bare = re.sub(r"label_values\((.*),\s*\w+\s*\)", r"\1", bare)
    names = set(re.findall(r"(?<![\w.$])[a-zA-Z_]\w*", bare))
    return names - _WORDS - _FUNCTIONS, labels
