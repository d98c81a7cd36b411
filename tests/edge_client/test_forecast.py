from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from draftwire.edge_client.forecast import (
    DISTANCES,
    STEEPEST,
    DraftMeasured,
    Measured,
    forecast,
    forecasts,
    typical_rights,
)
from draftwire.edge_client.prediction import speedup

RIGHT = (True, True, True, False) * 8


def measured(**changes: Any) -> Measured:
    draft = DraftMeasured(
        rights={"chat": RIGHT, "code": (True,) * 31 + (False,)},
        streaming=0.010,
        alone=0.008,
        alone_high=0.009,
        cpu_share=0.95,
        ratio=1.4,
        stream_rtt=None,
        bytes_up_per_second=900.0,
        quantization="int4",
        threads=1,
        cores=2,
    )
    fields: dict[str, Any] = {
        "rtt": 0.02,
        "jitter": 0.001,
        "step": 0.05,
        "step_high": 0.055,
        "slope": 0.03,
        "rate": 19.0,
        "tokens": 64,
        "draft": draft,
    }
    return Measured(**{**fields, **changes})


def test_shares_are_of_tokens() -> None:
    draft = measured().draft
    assert draft is not None
    assert draft.shares == {"chat": 0.75, "code": 31 / 32}
    assert draft.share == (24 + 31) / 64


def test_the_forecast_is_the_predictions_mean_over_the_samples() -> None:
    found = measured(rtt=0.0, slope=0.0)
    here = forecast(found, answer=0)
    assert here is not None
    parts: dict[str, Any] = {"step": 0.05, "draft": 0.010, "rtt": 0.0}
    assert found.draft is not None
    for mode, predicted in (("run_ahead", here.run_ahead), ("waiting", here.waiting), ("serial", here.serial)):
        chat, code = (speedup(right, mode=mode, **parts) for right in found.draft.rights.values())
        assert predicted == pytest.approx((chat * code) ** 0.5)
    assert here.rtt == 0.0
    assert 0.0 < here.passes_per_token < 1.0


def test_whether_drafts_just_miss_a_step_or_just_make_it_is_left_to_no_chance() -> None:
    """By the model alone a few milliseconds of distance cost much at some places, and nothing at others."""
    found = measured(slope=0.0)
    rtts = [0.05 + place / 1000 for place in range(100)]
    by_itself = [speedup(RIGHT, mode="run_ahead", step=0.05, draft=0.010, rtt=rtt) for rtt in rtts]
    averaged = [
        there.run_ahead for rtt in rtts if (there := forecast(found, rtt=rtt, rights=[RIGHT], answer=0)) is not None
    ]

    def sharpest(speeds: list[float]) -> float:
        return max(near / far for near, far in pairwise(speeds))

    assert sharpest(by_itself) > 1.05
    assert sharpest(averaged) - 1 < (sharpest(by_itself) - 1) / 2


@pytest.mark.parametrize("slope", [0.0, 0.03, 0.12, 0.5])
@pytest.mark.parametrize("draft", [0.005, 0.010, 0.03])
def test_distance_hardly_ever_seems_to_help(draft: float, slope: float) -> None:
    chance = random.Random(2)
    rights = [[chance.random() < share for _ in range(16)] for share in (0.9, 0.7, 0.5, 0.8)]
    rtts = [place / 200 for place in range(41)]
    speeds = [
        there.run_ahead
        for rtt in rtts
        if (there := forecast(measured(slope=slope), rtt=rtt, draft=draft, rights=rights)) is not None
    ]
    assert all(far <= near * 1.02 for near, far in pairwise(speeds))


@pytest.mark.parametrize("rtt", [0.0, 0.02, 0.071, 0.5])
def test_the_farther_the_slower(rtt: float) -> None:
    found = measured(rtt=rtt, slope=0.12)
    rows = forecasts(found)
    assert [row.rtt for row in rows] == sorted([*DISTANCES, rtt])
    assert forecast(found) in rows
    for name in ("run_ahead", "waiting", "serial"):
        speeds = [getattr(row, name) for row in rows]
        assert speeds == sorted(speeds, reverse=True)
    assert forecasts(measured(draft=None)) == []


def test_drafts_that_cost_the_target_too_much_are_left_out() -> None:
    steep = forecast(measured(slope=0.5))
    assert steep is not None
    assert steep.run_ahead > 1.0
    never = forecast(measured(slope=0.5), rights=[[False] * 32])
    assert never is not None
    assert (never.run_ahead, never.passes_per_token) == (pytest.approx(1.0), 1.0)


def test_a_slope_that_cannot_be_counts_as_the_steepest() -> None:
    assert forecast(measured(slope=7.0)) == forecast(measured(slope=STEEPEST))
    assert forecast(measured(slope=0.5)) != forecast(measured(slope=STEEPEST))


@pytest.mark.parametrize(("rate", "promised"), [(19.0, 19.0), (25.0, 20.0)])
def test_no_more_is_promised_than_was_measured(rate: float, promised: float) -> None:
    here = forecast(measured(rate=rate))
    assert here is not None
    assert here.cloud_only == pytest.approx(promised)


def test_short_samples_stand_for_longer_answers() -> None:
    far = measured(rtt=0.2)
    sure = [[True] * 32]
    short, long = forecast(far, rights=sure, answer=0), forecast(far, rights=sure)
    assert short is not None
    assert long is not None
    assert long.run_ahead > short.run_ahead


def test_a_short_sample_in_which_all_is_right_does_not_stand_for_a_long_answer() -> None:
    found = measured(rtt=0.2)
    lucky, mixed = (forecast(found, rights=rights) for rights in ([[True] * 16], [[True] * 16, [True, False] * 8]))
    long = forecast(found, rights=[[True] * 128, [True, False] * 64])
    assert lucky is not None
    assert mixed is not None
    assert long is not None
    assert mixed.run_ahead < long.run_ahead < lucky.run_ahead


def test_distance_hurts_those_who_wait_most() -> None:
    near, far = (forecast(measured(), rtt=rtt) for rtt in (DISTANCES[0], DISTANCES[-1]))
    assert near is not None
    assert far is not None
    losses = [getattr(near, name) / getattr(far, name) for name in ("run_ahead", "waiting", "serial")]
    assert 1.0 < losses[0] < losses[1] < losses[2]
    assert far.run_ahead > far.waiting > far.serial


def test_without_a_draft_only_a_supposed_one_can_be_predicted() -> None:
    alone = measured(draft=None)
    assert forecast(alone) is None
    assert forecast(alone, draft=0.005) is None
    quick, slow = (forecast(alone, draft=draft, rights=typical_rights(0.7)) for draft in (0.005, 0.02))
    assert quick is not None
    assert slow is not None
    assert quick.run_ahead > slow.run_ahead > 1.0


def test_a_part_can_be_supposed_to_be_better() -> None:
    found = measured()
    assert found.draft is not None
    slow = replace(found, draft=replace(found.draft, streaming=0.04))
    before, after = forecast(slow), forecast(slow, draft=0.01)
    assert before is not None
    assert after == forecast(found)
    assert after is not None
    assert after.run_ahead > before.run_ahead


def test_a_made_up_text_is_the_same_each_time() -> None:
    (text,) = typical_rights(0.7)
    assert typical_rights(0.7) == [text]
    assert 0.66 < sum(text) / len(text) < 0.74
