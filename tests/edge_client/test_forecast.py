from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from draftwire.edge_client.forecast import DISTANCES, DraftMeasured, Measured, forecast, typical_rights
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
    found = measured()
    here = forecast(found, answer=0)
    assert here is not None
    parts = {"mode": "run_ahead", "step": 0.05, "draft": 0.010, "rtt": 0.02, "slope": 0.03}
    assert found.draft is not None
    chat, code = (speedup(right, **parts) for right in found.draft.rights.values())
    assert here.run_ahead == pytest.approx((chat * code) ** 0.5)
    assert here.rtt == 0.02
    assert 0.0 < here.passes_per_token < 1.0


@pytest.mark.parametrize(("rate", "promised"), [(19.0, 19.0), (25.0, 20.0)])
def test_no_more_is_promised_than_was_measured(rate: float, promised: float) -> None:
    here = forecast(measured(rate=rate))
    assert here is not None
    assert here.cloud_only == pytest.approx(promised)


def test_short_samples_stand_for_longer_answers() -> None:
    far = measured(rtt=0.2)
    short, long = forecast(far, answer=0), forecast(far)
    assert short is not None
    assert long is not None
    assert long.run_ahead > short.run_ahead


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
