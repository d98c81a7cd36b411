from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from draftwire.edge_client.bench.conditions import Condition, Net
from draftwire.edge_client.bench.measure import Answer
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.bench.outcome import Collected, Outcome

Maker = Callable[..., Answer]
CONDITION = Condition(net=Net(rtt_ms=50), temperature=0.0)


def test_the_faster_variant_speaks_for_its_mode_and_the_other_is_kept(plain: Maker, drafted: Maker) -> None:
    slow = drafted(variant="K=3")
    slow = replace(slow, mode="serial", stats=replace(slow.stats, total_seconds=0.5))
    fast = replace(drafted(variant="K=6"), mode="serial")
    found = Outcome.of(CONDITION, parse_modes(["serial"]), Collected(answers=[plain(), slow, fast], rtt=0.05))
    assert [(each.mode, each.variant) for each in found.modes] == [("cloud_only", ""), ("serial", "K=6")]
    assert [(each.variant, each.look_ahead) for each in found.variants] == [("", 0), ("K=3", 3), ("K=6", 6)]
    assert found.variants[1].ratio.middle < found.variants[2].ratio.middle


def test_a_condition_that_failed_at_once_has_a_reason_and_no_figures() -> None:
    found = Outcome.of(CONDITION, parse_modes([]), Collected(rtt=0.0, failure="the line is dead"))
    assert found.modes == ()
    assert found.to_dict()["failure"] == "the line is dead"


def test_it_can_be_written_as_json(outcome: Callable[..., Outcome]) -> None:
    content = json.loads(json.dumps(outcome(rtt_ms=20).to_dict()))
    assert content["rtt_ms"] == 20
    assert [mode["mode"] for mode in content["modes"]] == ["cloud_only", "draftwire"]
    assert content["modes"][1]["of_predicted"] > 0
    assert content["answers"][1]["stats"]["drafted"] == 4
    assert content["measured_rtt_ms"] == 50
    assert content["modes"][0]["measured"] is None
    assert content["modes"][1]["measured"] == pytest.approx({"step": 0.03, "slope": 0.05, "draft": 0.01, "rtt": 0.05})
