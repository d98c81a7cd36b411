"""What a check-up makes of the answers it got; the answering itself is tested over a socket."""

from __future__ import annotations

from typing import Any, cast

import pytest
from draftwire.edge_client.checkup import Answer, Checkup, Sample
from draftwire.edge_client.client import AsyncEdgeClient
from draftwire.edge_client.stats import Stats
from draftwire.protocol.clock import CLOCK_UNIT
from draftwire.protocol.manifest import GraphSpec, KVSpec, Manifest, QuantizationSpec, SourceSpec, VocabularySpec

MANIFEST = Manifest(
    name="a draft",
    architecture="Table",
    builder="optimum",
    context_length=64,
    source=SourceSpec(model="a model"),
    vocabulary=VocabularySpec(fingerprint="00" * 16, size=8, logits_size=8, eos_ids=[0]),
    kv=KVSpec(layout="concatenated", layers=1, heads=1, head_size=1),
    graph=GraphSpec(inputs=["input_ids"]),
    quantization=QuantizationSpec(scheme="int8"),
)


def answer(*, seconds: float, steps: list[tuple[float, int]], **counters: Any) -> Answer:
    """Eleven tokens, the first at once, the others in so many seconds."""
    stats = Stats(committed=11, ttft_seconds=0.5, total_seconds=0.5 + seconds, **counters)
    return Answer(tuple(range(11)), stats, tuple(steps))


def plain(seconds: float = 0.5) -> Answer:
    return answer(seconds=seconds, steps=[(0.040, 0), (0.050, 0), (0.060, 0)])


def drafted(seconds: float = 0.25, **changes: Any) -> Answer:
    counters: dict[str, Any] = {
        "drafted": 12,
        "target_passes": 6,
        "run_ahead": 2,
        "draft_steps": 20,
        "draft_seconds": 0.2,
        "draft_cpu_seconds": 0.15,
        "rtt_seconds": [0.030, 0.020],
        "bytes_up": 150,
    }
    steps = [(0.050, 0), (0.056, 1), (0.053, 2), (0.300, 3)]
    return answer(seconds=seconds, steps=steps, **{**counters, **changes})


def checkup(*samples: Sample, **changes: Any) -> Checkup:
    fields: dict[str, Any] = {
        "drafting": True,
        "threads": 2,
        "manifest": MANIFEST,
        "pings": [0.020, 0.021, 0.022, 0.020, 0.050],
        "samples": list(samples),
        "steps_alone": [0.008, 0.009, 0.010],
    }
    return Checkup(client=cast(AsyncEdgeClient, None), **{**fields, **changes})


SAMPLES = (
    Sample("chat", plain(), drafted(), (True, False)),
    Sample("code", plain(), drafted(0.125, draft_seconds=0.4), (True, True)),
)


def test_nothing_is_known_before_anything_was_answered() -> None:
    assert checkup().measured() is None


def test_figures_are_medians_and_means_of_what_was_measured() -> None:
    found = checkup(*SAMPLES).measured()
    assert found is not None
    assert found.rtt == 0.021
    assert found.jitter == pytest.approx(0.0388 - 0.021)
    assert found.step == 0.050
    assert found.rate == pytest.approx(20.0)
    assert found.tokens == 22
    assert (found.fault, found.reason) == (None, None)


def test_figures_of_the_draft() -> None:
    found = checkup(*SAMPLES).measured()
    assert found is not None
    draft = found.draft
    assert draft is not None
    assert draft.rights == {"chat": (True, False), "code": (True, True)}
    assert draft.streaming == pytest.approx((0.010 + 0.020) / 2)
    assert draft.alone == 0.009
    assert draft.cpu_share == pytest.approx(0.3 / 0.6)
    assert draft.ratio == pytest.approx((2 * 4) ** 0.5)
    assert draft.stream_rtt == pytest.approx(0.025)
    assert draft.bytes_up_per_second == pytest.approx(300 / 1.375)
    assert (draft.quantization, draft.threads) == ("int8", 2)


def test_drafts_in_a_step_cost_what_such_steps_took_longer_and_a_stumble_counts_little() -> None:
    examined = checkup(*SAMPLES)
    assert examined.steps_with_drafts() == (0.056, 3.0)
    found = examined.measured()
    assert found is not None
    assert found.slope == pytest.approx((0.056 / 0.050 - 1) / 3)


def test_what_drafts_in_a_step_cost_is_kept_however_much_it_is() -> None:
    busy = drafted()
    slow = Answer(busy.token_ids, busy.stats, ((0.050, 0), (0.275, 1), (0.275, 2)))
    found = checkup(Sample("chat", plain(), slow, (True,))).measured()
    assert found is not None
    assert found.slope == pytest.approx((0.275 / 0.050 - 1) / 3)


def test_where_no_draft_came_in_time_steps_cost_the_same() -> None:
    late = answer(seconds=0.5, steps=[(0.09, 0)], target_passes=11, run_ahead=11, draft_steps=0)
    found = checkup(Sample("chat", plain(), late, (True,))).measured()
    assert found is not None
    assert found.slope == 0.0
    assert found.draft is not None
    assert found.draft.streaming == found.draft.alone
    assert found.draft.stream_rtt is None
    assert found.draft.cpu_share == 1.0


def test_a_step_too_short_for_the_clock_is_not_nothing() -> None:
    quick = answer(seconds=0.001, steps=[(0.0, 0), (0.0, 0)])
    found = checkup(Sample("chat", quick, None, ()), drafting=False, manifest=None).measured()
    assert found is not None
    assert found.step == CLOCK_UNIT / 2


@pytest.mark.parametrize("changes", [{"manifest": None}, {"fault": "failing", "reason": "it broke"}])
def test_a_draft_that_is_not_in_use_has_no_figures(changes: dict[str, Any]) -> None:
    found = checkup(*SAMPLES, **changes).measured()
    assert found is not None
    assert found.draft is None
    assert found.reason == changes.get("reason")
