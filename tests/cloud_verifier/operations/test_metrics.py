"""What is exposed, and that docs/metrics.md says the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from draftwire.cloud_verifier.engine.observer import EngineGauges
from draftwire.cloud_verifier.operations.metrics import Metrics, Watched
from draftwire.cloud_verifier.operations.tally import Tally
from draftwire.cloud_verifier.service.http import Call, Visitor
from prometheus_client.parser import text_string_to_metric_families

from .streams import INFO, commit, step_of, stream_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"


class Engine:
    """Stands as it is told to."""

    def __init__(self, *, budget: int | None = 400, busy_since: float | None = None, draining: bool = False) -> None:
        self._budget = budget
        self._draining = draining
        self.busy_since = busy_since

    def gauges(self) -> EngineGauges:
        return EngineGauges(
            running=3,
            waiting=2,
            kv_used_bytes=100,
            kv_total_bytes=self._budget,
            prefix_tokens=32,
            prefix_queried=50,
            prefix_found=20,
            draining=self._draining,
        )


class Log:
    errors = 7
    dropped = 8


def metrics(engine: Engine | None = None, tally: Tally | None = None) -> Metrics:
    made = Metrics(INFO, tally or Tally(by_key=True), log=Log())
    made.watch(
        Watched(
            engine=engine or Engine(),
            connections=lambda: 5,
            routes=lambda: {"": "healthy", "chat": "tripped"},
            reloads=lambda: (2, 1),
        )
    )
    return made


async def scrape(made: Metrics) -> dict[tuple[str, ...], float]:
    """Our samples by name and values of labels."""
    (route,) = made.routes()
    reply = await route.handler(Call(method="GET", path="/metrics", headers={}, body=b"", visitor=Visitor()))
    assert isinstance(reply.body, bytes)
    return {
        (sample.name.removeprefix("draftwire_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(reply.body.decode())
        for sample in family.samples
        if sample.name.startswith("draftwire_")
    }


async def test_how_things_stand() -> None:
    seen = await scrape(metrics(Engine(draining=True)))
    expected = {
        ("num_requests_running",): 3,
        ("num_requests_waiting",): 2,
        ("kv_cache_used_bytes",): 100,
        ("kv_cache_limit_bytes",): 400,
        ("kv_cache_usage_perc",): 0.25,
        ("prefix_cache_tokens",): 32,
        ("prefix_cache_queries_total",): 50,
        ("prefix_cache_hits_total",): 20,
        ("draining",): 1,
        ("step_in_progress_seconds",): 0,
        ("connections",): 5,
        ("speculation_state", "default", "healthy"): 1,
        ("speculation_state", "default", "tripped"): 0,
        ("speculation_state", "chat", "healthy"): 0,
        ("speculation_state", "chat", "tripped"): 1,
        ("config_reloads_total", "done"): 2,
        ("config_reloads_total", "failed"): 1,
        ("log_errors_total",): 7,
        ("log_dropped_total",): 8,
    }
    assert {key: seen[key] for key in expected} == expected


async def test_a_step_that_does_not_end_grows_old() -> None:
    assert (await scrape(metrics(Engine(busy_since=0.0))))["step_in_progress_seconds",] > 0


async def test_what_is_not_known_is_not_told() -> None:
    seen = await scrape(metrics(Engine(budget=None)))
    assert ("kv_cache_usage_perc",) not in seen
    bare = await scrape(Metrics(INFO, Tally()))
    assert not {"num_requests_running", "connections", "log_errors_total"} & {name for name, *_ in bare}


async def test_buckets_are_cumulative_and_end_with_all() -> None:
    tally = Tally()
    for seconds in (0.001, 0.02, 0.02, 100.0):
        tally.stepped(step_of(prompts=0, drafts=0, streams=1, seconds=seconds))
    seen = await scrape(metrics(tally=tally))
    assert seen["step_seconds_bucket", "0.001"] == 1
    assert seen["step_seconds_bucket", "0.01"] == 1
    assert seen["step_seconds_bucket", "0.02"] == 3
    assert seen["step_seconds_bucket", "30.0"] == 3
    assert seen["step_seconds_bucket", "+Inf"] == seen["step_seconds_count",] == 4
    assert seen["step_seconds_sum",] == pytest.approx(100.041)


async def test_names_that_come_from_outside_do_not_break_the_form() -> None:
    tally, stream = Tally(), stream_of()
    stream.owner.route = 'a"b\\c\nd'
    tally.opened(stream, waited=0.0)
    commit(tally, stream, 101.0)
    tally.ended(stream, "stop")
    assert (await scrape(metrics(tally=tally)))["route_generation_tokens_total", 'a"b\\c\nd'] == 1


def test_the_page_says_what_is_exposed() -> None:
    tally, stream = Tally(by_key=True), stream_of()
    tally.opened(stream, waited=0.0)
    tally.ended(stream, "stop")
    tally.speculation_switched("chat", "tripped", "acceptance")
    exposed = {}
    for family in metrics(tally=tally)._registry.collect():
        if family.name.startswith("draftwire_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            exposed[name] = (family.type, labels)
    rows = re.findall(r"^\| `(draftwire_\w+)` \| (\w+) \| ([\w, -]+) \| \S", PAGE.read_text("utf-8"), re.MULTILINE)
    page = {name: (kind, set(labels.split(", ")) - {"-"}) for name, kind, labels in rows}
    assert len(page) == len(rows)
    assert page == exposed


def test_the_queries_on_the_page_ask_for_what_is_there() -> None:
    named = set(re.findall(r"draftwire_\w+", PAGE.read_text("utf-8")))
    rows = set(re.findall(r"^\| `(draftwire_\w+)` \|", PAGE.read_text("utf-8"), re.MULTILINE))
    assert named <= rows
