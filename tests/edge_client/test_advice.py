"""Each rule of the advice, case by case, from a pair that is in order and differs in the one thing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from draftwire.edge_client.advice import Advice, advise
from draftwire.edge_client.forecast import DraftMeasured, Measured, forecast

RUNS = (6, 1, 0, 10, 2, 0, 3, 0)
MOSTLY = tuple(right for run in RUNS for right in (*[True] * run, False))  # in runs, as on real text
HALF = (True, False) * 16
SELDOM = (True, False, False, False) * 8

DRAFT = DraftMeasured(
    rights={"chat": MOSTLY, "code": MOSTLY},
    streaming=0.009,
    alone=0.008,
    alone_high=0.009,
    cpu_share=0.95,
    ratio=1.62,
    stream_rtt=0.022,
    bytes_up_per_second=900.0,
    quantization="int4",
    threads=1,
    cores=2,
)
GOOD = Measured(rtt=0.02, jitter=0.001, step=0.05, step_high=0.055, slope=0.03, rate=20.0, tokens=128, draft=DRAFT)


def pair(*, draft: dict[str, Any] | None = None, **changes: Any) -> Measured:
    """The pair that is in order, but for some figures."""
    return replace(GOOD, draft=replace(DRAFT, **(draft or {})), **changes)


def about(measured: Measured, words: str) -> Advice:
    """The one piece of advice whose finding has these words."""
    (advice,) = [advice for advice in advise(measured) if words in advice.finding]
    return advice


def silent(measured: Measured, words: str) -> bool:
    return all(words not in advice.finding for advice in advise(measured))


def test_all_is_fine() -> None:
    verdict, *others = advise(GOOD)
    assert verdict.severity == "fine"
    assert "expect about 1.6x" in verdict.finding
    assert "measured 1.62x over 128 tokens" in verdict.finding
    assert verdict.action == "nothing needs to change"
    assert [advice.severity for advice in others] == ["note"]
    assert "greedy" in others[0].finding
    assert "above temperature 0" in others[0].action


def test_what_is_expected_is_the_less_of_measured_and_predicted() -> None:
    predicted = forecast(GOOD)
    assert predicted is not None
    verdict = advise(pair(draft={"ratio": 3.0}))[0]
    assert f"about {predicted.run_ahead:.1f}x" in verdict.finding
    assert "expect about 1.3x" in advise(pair(draft={"ratio": 1.3}))[0].finding


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.03, "this draft hardly pays here: expect about 1.0x (measured 1.03x"),
        (0.97, "this draft hardly pays here: expect about 1.0x (measured 0.97x"),
        (0.83, "drafting slows answers down here: expect about 0.8x (measured 0.83x"),
    ],
)
def test_a_draft_that_does_not_pay_is_told_so(ratio: float, words: str) -> None:
    verdict = advise(pair(draft={"ratio": ratio}))[0]
    assert verdict.severity == "warning"
    assert verdict.finding.startswith(words)
    assert "leave --draft out" in verdict.action


@pytest.mark.parametrize(("seconds", "words"), [(0.026, "is slow for this target"), (0.06, "is too slow")])
def test_a_slow_draft(seconds: float, words: str) -> None:
    advice = about(pair(draft={"alone": seconds, "streaming": seconds, "alone_high": seconds}), words)
    assert advice.severity == "warning"
    assert f"{1000 * seconds:.1f} ms a token" in advice.finding
    assert "50.0 ms" in advice.finding
    assert "smaller model" in advice.action
    assert "--threads 2 instead of 1" in advice.action
    assert "execution provider" in advice.action
    assert "int4" not in advice.action
    assert "In half the time" in advice.action


def test_a_slow_draft_that_is_not_yet_int4_may_become_so() -> None:
    slow = {"alone": 0.04, "streaming": 0.04, "alone_high": 0.04, "threads": 2}
    assert "int4 instead of int8" in about(pair(draft={**slow, "quantization": "int8"}), "slow").action
    advice = about(pair(draft={**slow, "quantization": "none"}), "slow")
    assert "int4 instead of fp32" in advice.action
    assert "--threads" not in advice.action


def test_a_draft_that_is_slow_only_while_text_streams_is_not_called_slow() -> None:
    disturbed = pair(draft={"streaming": 0.03})
    assert silent(disturbed, "for this target")
    advice = about(disturbed, "cores are busy")
    assert "30.0 ms a token while text streams, 8.0 ms without" in advice.finding
    undisturbed = forecast(disturbed, draft=DRAFT.alone)
    assert undisturbed is not None
    assert advice.action.endswith(f"undisturbed it would bring about {undisturbed.run_ahead:.1f}x")
    assert "undisturbed" not in about(pair(draft={"streaming": 0.008, "cpu_share": 0.4}), "cores are busy").action


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"alone_high": 0.020}, "one token in ten takes 20.0 ms"),
        ({"cpu_share": 0.4}, "only 40% of the time"),
    ],
)
def test_a_busy_device(figures: dict[str, float], words: str) -> None:
    advice = about(pair(draft=figures), "cores are busy")
    assert advice.severity == "warning"
    assert words in advice.finding
    assert "a core of its own" in advice.action
    assert "fewer threads than 2" in about(pair(draft={**figures, "threads": 2}), "cores are busy").action


def test_a_draft_that_is_seldom_right() -> None:
    advice = about(pair(draft={"rights": {"chat": SELDOM, "code": HALF}}), "seldom right")
    assert advice.severity == "warning"
    assert "0.38 of the samples' tokens, least in chat (0.25)" in advice.finding
    assert "int8 export instead of int4" in advice.action
    assert "fine-tuned" in advice.action
    assert "right 0.85 of the time" in advice.action
    other = about(pair(draft={"rights": {"chat": SELDOM}, "quantization": "int8"}), "seldom right")
    assert "int8" not in other.action


def test_a_kind_of_text_in_which_the_draft_is_weak() -> None:
    advice = about(pair(draft={"rights": {"chat": HALF, "code": MOSTLY, "list": (True,) * 32}}), "depends on the text")
    assert advice.severity == "note"
    assert "least in chat (0.50)" in advice.finding
    assert silent(GOOD, "depends on the text")


def test_a_far_target() -> None:
    far = pair(rtt=0.2, draft={"stream_rtt": 0.2})
    advice = about(far, "the round trip decides")
    predicted = forecast(far)
    assert predicted is not None
    assert "200 ms is 4.0 target steps of 50.0 ms" in advice.finding
    assert f"a draft still gains about {predicted.run_ahead - 1:.0%}" in advice.action
    assert "nearer region would bring about" in advice.action
    assert "at 20.0 ms" in advice.action
    assert "Do not use the cost policy" in advice.action
    assert f"about {predicted.waiting:.1f}x" in advice.action


def test_a_target_so_far_that_a_draft_gains_nothing() -> None:
    advice = about(pair(rtt=2.0, draft={"rights": {"chat": HALF}}), "the round trip decides")
    assert "gains next to nothing" in advice.action


def test_no_nearer_region_is_praised_that_brings_nothing() -> None:
    never = {"rights": {"chat": (False,) * 32}, "ratio": 1.0}
    assert "nearer region" not in about(pair(rtt=0.2, draft=never), "the round trip decides").action


def test_distance_without_a_draft_is_no_fault() -> None:
    advice = about(replace(GOOD, draft=None, rtt=0.2), "the round trip decides")
    assert advice.severity == "note"


def test_nobody_on_the_same_machine_is_far() -> None:
    assert silent(pair(rtt=0.004, step=0.001), "the round trip decides")


def test_a_target_so_fast_that_a_draft_hardly_pays() -> None:
    advice = about(pair(step=0.009, step_high=0.009), "the target is fast")
    assert "9.0 ms a step" in advice.finding
    assert "target passes are what costs" in advice.action
    quick = {"streaming": 0.002, "alone": 0.002, "alone_high": 0.002, "stream_rtt": 0.002}
    assert silent(pair(step=0.014, step_high=0.014, rtt=0.001, draft=quick), "the target is fast")


def test_an_unsteady_network() -> None:
    advice = about(pair(jitter=0.03), "unsteady")
    assert advice.severity == "warning"
    assert "20.0 ms, but one in ten takes at least 30.0 ms more" in advice.finding
    assert "never text" in advice.action
    assert silent(pair(step=0.004, step_high=0.004, jitter=0.004), "unsteady")
    assert "when it is slow" not in about(replace(GOOD, draft=None, jitter=0.03), "unsteady").action


def test_frames_that_take_longer_than_pings() -> None:
    advice = about(pair(draft={"stream_rtt": 0.06, "bytes_up_per_second": 1840.0}), "frames take")
    assert "60.0 ms there and back, pings 20.0 ms" in advice.finding
    assert "1.8 kB a second" in advice.finding
    assert "smaller look_ahead" in advice.action
    assert silent(pair(draft={"stream_rtt": 0.028}), "frames take")
    assert silent(pair(draft={"stream_rtt": None}), "frames take")


@pytest.mark.parametrize("slope", [0.15, 0.5])
def test_steps_that_drafts_make_long(slope: float) -> None:
    advice = about(pair(slope=slope), "drafts make the target's steps long")
    assert f"each draft token in a step costs {slope:.0%} of a step more" in advice.finding
    assert "if the target is not in bfloat16 yet" in advice.action
    assert silent(pair(slope=0.02), "drafts make the target's steps long")


def test_a_verifier_that_others_use_as_well() -> None:
    advice = about(pair(step_high=0.12), "steps vary")
    assert "50.0 ms usually, one in ten 120 ms" in advice.finding


def test_a_measurement_that_its_parts_do_not_explain() -> None:
    assert "measured 1.10x" in about(pair(draft={"ratio": 1.1}), "taken one by one").finding
    assert silent(GOOD, "taken one by one")


def test_without_a_draft_one_is_told_what_it_could_bring() -> None:
    advice, *others = advise(replace(GOOD, draft=None))
    assert others == []
    assert advice.severity == "note"
    assert "50.0 ms a step and is 20.0 ms away" in advice.finding
    for draft in ("5.0", "10.0", "20.0"):
        assert f"x at {draft} ms a token" in advice.finding
    assert "draftwire-export draft" in advice.action


def test_where_no_draft_would_pay_none_is_recommended() -> None:
    assert "stay cloud-only" in advise(replace(GOOD, draft=None, step=0.003, step_high=0.003))[0].action


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("mismatch", "the target's own family"),
        ("unreadable", "all of its files"),
        ("failing", "draftwire-export check"),
    ],
)
def test_a_draft_that_cannot_be_used(fault: Any, words: str) -> None:
    advice = advise(replace(GOOD, draft=None, fault=fault, reason="it is broken; mend it"))[0]
    assert advice.severity == "problem"
    assert advice.finding == "it is broken; mend it"
    assert words in advice.action
    assert "typical draft would bring about" in advice.action


@pytest.mark.parametrize("measured", [GOOD, pair(rtt=0.3, jitter=0.1), replace(GOOD, draft=None), pair(step=0.0001)])
def test_every_piece_is_one_line_with_something_to_do(measured: Measured) -> None:
    for advice in advise(measured):
        assert advice.finding
        assert advice.action
        assert "\n" not in advice.finding + advice.action
