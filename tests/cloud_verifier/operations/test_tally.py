"""What each event counts as."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.observer import Observer
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.operations.instruments import Spread
from draftwire.cloud_verifier.operations.tally import Tally

from .streams import Client, commit, step_of, stream_of


def counters(tally: Tally) -> dict[tuple[str, ...], float]:
    """Those that are not zero, by name and labels."""
    counts, _ = tally.read()
    return {(family.name, *labels): value for family, values in counts for labels, value in values.items() if value}


def spread(tally: Tally, name: str, *labels: str) -> Spread:
    _, distributions = tally.read()
    (values,) = (values for family, values in distributions if family.name == name)
    return values[labels]


def test_one_stream_from_beginning_to_end() -> None:
    tally, stream = Tally(by_key=True), stream_of(opened_at=100.0)
    tally.opened(stream, waited=0.5)
    commit(tally, stream, 101.0)
    commit(tally, stream, 101.2, drafted=4, accepted=2)
    commit(tally, stream, 101.5, drafted=2, accepted=2)
    tally.ended(stream, "length")
    assert counters(tally) == {
        ("spec_decode_num_drafts", "on"): 2,
        ("spec_decode_num_draft_tokens", "on"): 6,
        ("spec_decode_num_accepted_tokens", "on"): 4,
        ("spec_decode_num_draft_tokens_per_pos", "on", "0"): 2,
        ("spec_decode_num_draft_tokens_per_pos", "on", "1"): 2,
        ("spec_decode_num_draft_tokens_per_pos", "on", "2"): 1,
        ("spec_decode_num_draft_tokens_per_pos", "on", "3"): 1,
        ("spec_decode_num_accepted_tokens_per_pos", "on", "0"): 2,
        ("spec_decode_num_accepted_tokens_per_pos", "on", "1"): 2,
        ("prompt_tokens", "on"): 3,
        ("generation_tokens", "on"): 7,
        ("run_ahead_tokens", "on"): 1,
        ("request_success", "length"): 1,
        ("route_requests", "chat", "length"): 1,
        ("route_prompt_tokens", "chat"): 3,
        ("route_generation_tokens", "chat"): 7,
        ("route_draft_tokens", "chat"): 6,
        ("route_accepted_tokens", "chat"): 4,
        ("key_requests", "acme", "length"): 1,
        ("key_prompt_tokens", "acme"): 3,
        ("key_generation_tokens", "acme"): 7,
        ("key_draft_tokens", "acme"): 6,
        ("key_accepted_tokens", "acme"): 4,
    }
    totals = {
        ("request_queue_time_seconds",): 0.5,
        ("request_prefill_time_seconds",): 0.5,
        ("time_to_first_token_seconds", "on"): 1.0,
        ("inter_token_latency_seconds", "on"): 0.5,
        ("request_time_per_output_token_seconds", "on"): 0.5 / 6,
        ("request_decode_time_seconds",): 0.5,
        ("e2e_request_latency_seconds", "on"): 1.5,
        ("request_prompt_tokens",): 3,
        ("request_generation_tokens",): 7,
    }
    for name, total in totals.items():
        assert spread(tally, *name).total == pytest.approx(total), name
    assert sum(spread(tally, "inter_token_latency_seconds", "on").buckets) == 2


def test_shadow_and_off_are_told_apart() -> None:
    tally = Tally()
    for number, (speculation, drafting) in enumerate(
        [(Speculation.SHADOW, True), (Speculation.OFF, True), (Speculation.ON, False)], start=1
    ):
        stream = stream_of(stream=number, speculation=speculation, drafting=drafting)
        tally.opened(stream, waited=0.0)
        commit(tally, stream, 101.0, drafted=3 if speculation is Speculation.SHADOW else 0, accepted=0)
    seen = counters(tally)
    assert seen["generation_tokens", "shadow"] == 1
    assert seen["generation_tokens", "off"] == 2
    assert seen["spec_decode_num_draft_tokens", "shadow"] == 3
    assert ("run_ahead_tokens", "off") not in seen


@pytest.mark.parametrize(
    ("outcome", "counted"),
    [
        ("stop", "request_success"),
        ("cancelled", "request_success"),
        ("left", "request_success"),
        ("internal", "request_failures"),
        ("busy", "request_failures"),
    ],
)
def test_every_end_is_counted_once(outcome: str, counted: str) -> None:
    tally, stream = Tally(), stream_of()
    tally.opened(stream, waited=0.0)
    tally.ended(stream, outcome)
    ends = {key: value for key, value in counters(tally).items() if key[0].startswith("request_")}
    assert ends == {(counted, outcome): 1}
    assert spread(tally, "e2e_request_latency_seconds", "on").total == 0


def test_steps() -> None:
    tally = Tally()
    tally.stepped(step_of(prompts=10, drafts=5, streams=4))
    tally.failed_step(RuntimeError())
    tally.preempted(stream_of())
    tally.recomputed(stream_of())
    assert counters(tally) == {
        ("target_tokens", "prompt"): 10,
        ("target_tokens", "draft"): 5,
        ("target_tokens", "decode"): 4,
        ("target_failures",): 1,
        ("num_preemptions",): 1,
        ("recomputed_blocks",): 1,
    }
    assert spread(tally, "step_tokens").total == 19
    assert spread(tally, "step_streams").total == 4
    assert spread(tally, "step_seconds").total == pytest.approx(0.02)
    assert spread(tally, "target_step_seconds").total == pytest.approx(0.01)


def test_refusals_and_switches() -> None:
    tally = Tally()
    tally.refused(Client(), "busy")
    tally.rejected("rate_limited")
    tally.speculation_switched("chat", "off", "acceptance")
    assert counters(tally) == {
        ("requests_rejected", "busy"): 1,
        ("requests_rejected", "rate_limited"): 1,
        ("speculation_switches", "chat", "off", "acceptance"): 1,
    }


def test_routes_that_clients_make_up_do_not_grow_the_metrics() -> None:
    tally = Tally()
    for number in range(1000):
        stream = stream_of(Client(route=f"r{number}" + "x" * 500))
        tally.opened(stream, waited=0.0)
        tally.ended(stream, "left")
    seen = {key: value for key, value in counters(tally).items() if key[0] == "route_requests"}
    assert len(seen) == 101
    assert seen["route_requests", "other", "left"] == 900
    assert max(len(label) for _, label, _ in seen) == 64


def test_a_route_of_no_characters_at_all_can_be_told() -> None:
    tally, stream = Tally(), stream_of(Client(route="\udcff"))
    tally.opened(stream, waited=0.0)
    tally.ended(stream, "left")
    assert ("route_requests", "?", "left") in counters(tally)


def test_nothing_is_kept_of_streams_that_are_over() -> None:
    tally = Tally()
    for number in range(1, 50):
        stream = stream_of(stream=number)
        tally.opened(stream, waited=0.0)
        commit(tally, stream, 101.0)
        tally.ended(stream, "left")
    assert len(tally._lives) == 0


def test_what_is_read_belongs_together() -> None:
    """While the engine counts, every reading adds up; threads take turns as often as they can here."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    tally, stream = Tally(), stream_of(max_tokens=1_000_000)
    tally.opened(stream, waited=0.0)
    ready, over = threading.Event(), threading.Event()

    def count() -> None:
        number = 0
        while not over.is_set():
            number += 1
            commit(tally, stream, 100.0 + number, drafted=8, accepted=number % 9)
            ready.set()

    engine = threading.Thread(target=count)
    engine.start()
    try:
        ready.wait(30)
        for _ in range(200):
            seen = counters(tally)
            by_position = sum(
                value for key, value in seen.items() if key[0] == "spec_decode_num_accepted_tokens_per_pos"
            )
            accepted = seen.get(("spec_decode_num_accepted_tokens", "on"), 0)
            assert by_position == accepted
            assert seen["generation_tokens", "on"] == accepted + seen["spec_decode_num_drafts", "on"]
    finally:
        sys.setswitchinterval(interval)
        over.set()
        engine.join(30)


def test_it_hears_everything_that_there_is_to_hear() -> None:
    """An event that is added to the observer must be counted, or left out on purpose."""
    events = {name for name, value in vars(Observer).items() if callable(value) and not name.startswith("_")}
    heard: dict[str, Any] = vars(Tally)
    assert events - heard.keys() == {"waiting"}  # the line's length is a gauge
