"""What a verifier tells Prometheus, read by Prometheus' own parser."""

from __future__ import annotations

import urllib.request
from typing import Any

from prometheus_client.parser import text_string_to_metric_families as parse_text


class Scrape:
    """What one scrape said: samples by name and labels."""

    def __init__(self, text: str, *, parse: Any = parse_text) -> None:
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in parse(text):
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in self.samples
                self.samples[key] = sample.value

    def value(self, name: str, **labels: str) -> float:
        return self.samples[f"draftwire_{name}", frozenset(labels.items())]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all other labels."""
        return sum(
            value
            for (sample, has), value in self.samples.items()
            if sample == f"draftwire_{name}" and has >= frozenset(labels.items())
        )

    def by_position(self, name: str) -> list[float]:
        positions = sorted(
            {int(dict(labels)["position"]) for sample, labels in self.samples if sample == f"draftwire_{name}"}
        )
        return [self.total(name, position=str(position)) for position in positions]


def fetch(url: str, **headers: str) -> tuple[str, str]:
    """Content type and text."""
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.headers["Content-Type"], reply.read().decode()
