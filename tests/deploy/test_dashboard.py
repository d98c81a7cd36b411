"""The dashboard and the alerts ask for what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .exposed import asked_for, families, samples

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "draftwire.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
]
OUTER_LABELS = {"job", "instance", "le"}
"""Those that Prometheus adds, and that of buckets."""


def queries() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"panel: {panel['title']}", target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable: {variable['name']}", variable["query"]["query"]
    for rule in RULES:
        yield f"alert: {rule['alert']}", rule["expr"]


QUERIES = list(queries())


@pytest.mark.parametrize(
    ("where", "query"), QUERIES, ids=[f"{where} {number}" for number, (where, _) in enumerate(QUERIES)]
)
def test_every_metric_and_label_that_is_asked_for_is_exposed(where: str, query: str) -> None:
    del where
    names, labels = asked_for(query)
    known = samples()
    assert names
    assert names <= known.keys()
    assert labels <= OUTER_LABELS.union(*(known[name] for name in names))


def test_a_name_that_is_not_there_would_be_found() -> None:
    query = 'sum by (le, kind) (rate(draftwire_nothing_total{job=~"$job", flavour!="x"}[$__rate_interval])) / 2.5e3 > 1'
    assert asked_for(query) == ({"draftwire_nothing_total"}, {"le", "kind", "job", "flavour"})
    assert asked_for('label_values(draftwire_build_info{a="b"}, instance)') == ({"draftwire_build_info"}, {"a"})
    assert "draftwire_nothing_total" not in samples()


def test_every_metric_of_ours_is_on_the_dashboard_or_left_out_on_purpose() -> None:
    shown = {name for _, query in QUERIES for name in asked_for(query)[0]}
    left_out = {
        "draftwire_request_prefill_time_seconds",
        "draftwire_request_decode_time_seconds",
        "draftwire_step_tokens",
        "draftwire_kv_cache_limit_bytes",
        "draftwire_prefix_cache_tokens",
        *(f"draftwire_key_{what}" for what in ("requests", "prompt_tokens", "generation_tokens")),
        *(f"draftwire_key_{what}" for what in ("draft_tokens", "accepted_tokens")),
        *(f"draftwire_route_{what}" for what in ("requests", "prompt_tokens", "draft_tokens", "accepted_tokens")),
    }
    ours = {
        family.name: {sample.name for sample in family.samples} for family in families() if "draftwire" in family.name
    }
    assert {name for name, told in ours.items() if not told & shown} == left_out


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"]
        assert '{job=~"$job", instance=~"$instance"' in target["expr"]


def test_panels_are_told_apart_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        mine = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not mine & cells
        cells |= mine


def test_the_data_source_can_be_chosen() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["datasource"]["query"] == "prometheus"
    assert {"job", "instance"} < variables.keys()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_is_wrong_and_how_much_it_matters(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    assert rule["annotations"]["summary"]
