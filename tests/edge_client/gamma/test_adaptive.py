from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from draftwire.edge_client.gamma.adaptive import AdaptiveController
from draftwire.edge_client.gamma.controller import Outlook, Round
from draftwire.edge_client.gamma.figures import Figures
from draftwire.edge_client.replay import Conditions, replay

SURE, DOUBTFUL = 1, 40


def known(*, draft: float = 0.007, rtt: float = 0.02, step: float = 0.03) -> Figures:
    figures = Figures()
    for _ in range(9):
        figures.draft.add(draft)
        figures.rtt.add(rtt)
        figures.step.add(0, step)
    return figures


def outlook(ahead: Sequence[int] = (), *, unsent: int = 0, room: int = 40, now: float = 100.0) -> Outlook:
    return Outlook(now=now, ahead=ahead, unsent=unsent, room=room)


def round_of(**changes: Any) -> Round:
    usual: dict[str, Any] = {
        "now": 100.0, "tokens": 1, "tested": (), "depth": 0, "kept": True, "block": 0, "rtt": None, "queued": 0.0,
        "computed": 0.03,
    }  # fmt: skip
    return Round(**{**usual, **changes})


def test_nothing_known_it_drafts_and_sends_at_once() -> None:
    controller = AdaptiveController(Figures(), most=48)
    assert controller.decide(outlook()).draft
    decision = controller.decide(outlook([SURE], unsent=1))
    assert (decision.draft, decision.send, decision.continues) == (True, True, True)


def test_sure_tokens_take_a_path_farther_than_doubtful_ones() -> None:
    def depth(byte: int) -> int:
        controller = AdaptiveController(known(), most=48)
        return next(count for count in range(60) if not controller.decide(outlook([byte] * count)).draft)

    assert depth(DOUBTFUL) < 6 < depth(SURE) == 48


@pytest.mark.parametrize(("room", "ahead"), [(0, 3), (40, 48)])
def test_it_stays_within_the_limits(room: int, ahead: int) -> None:
    decision = AdaptiveController(known(), most=48).decide(outlook([SURE] * ahead, unsent=1, room=room))
    assert (decision.draft, decision.send, decision.continues) == (False, True, False)


def test_the_slower_the_draft_the_more_a_token_must_promise() -> None:
    """A path that ends while a token is being drafted makes the next path start later."""

    def depth(draft: float) -> int:
        controller = AdaptiveController(known(draft=draft, step=0.03), most=48)
        return next(count for count in range(60) if not controller.decide(outlook([15] * count)).draft)

    assert depth(0.025) < depth(0.007)


def test_tokens_that_catch_the_same_step_go_in_one_frame() -> None:
    """A commit heard at 100.0 with a round trip of 20 ms: steps begin as seen from here at 100.01, 100.04, ..."""
    controller = AdaptiveController(known(), most=48)
    for now in (99.94, 99.97, 100.0):
        controller.committed(round_of(now=now))
    early = controller.decide(outlook([SURE], unsent=1, now=100.012))
    late = controller.decide(outlook([SURE, SURE], unsent=2, now=100.035))
    assert (early.draft, early.send) == (True, False)
    assert (late.draft, late.send) == (True, True)


def test_where_the_network_is_unsteady_each_token_goes_at_once() -> None:
    figures = known()
    figures.rtt.add(0.05)
    controller = AdaptiveController(figures, most=48)
    for now in (99.94, 99.97, 100.0):
        controller.committed(round_of(now=now))
    assert controller.decide(outlook([SURE], unsent=1, now=100.012)).send


def test_grouping_costs_no_speed_and_saves_frames() -> None:
    right, confidences = [True, True, True, False] * 150, [3, 3, 3, 9] * 150
    conditions = Conditions(step=0.03, draft=0.007, delay=0.01)
    grouped = replay(right, confidences, AdaptiveController(known(), most=48), conditions)

    class EachAtOnce(AdaptiveController):
        def _may_wait(self, outlook: Outlook) -> bool:  # noqa: ARG002
            return False

    apart = replay(right, confidences, EachAtOnce(known(), most=48), conditions)
    assert grouped.seconds <= 1.005 * apart.seconds
    assert grouped.frames < 0.6 * apart.frames


def test_a_useless_draft_is_left_alone_but_for_probes() -> None:
    conditions = Conditions(step=0.03, draft=0.007, delay=0.01)
    played = replay([False] * 1000, [3] * 1000, AdaptiveController(Figures(), most=48), conditions)
    assert played.drafted < 0.3 * played.tokens
    assert played.frames > 5  # it keeps looking


def test_a_draft_slower_than_the_target_rests() -> None:
    """Its tokens are always late, however right they are."""
    conditions = Conditions(step=0.03, draft=0.06, delay=0.01)
    played = replay([True] * 1000, [3] * 1000, AdaptiveController(Figures(), most=48), conditions)
    busy = played.drafted * conditions.draft / played.seconds
    assert busy < 0.4


def test_it_begins_from_what_the_device_knows() -> None:
    """A stream that follows another does not learn anew that the draft is useless."""
    conditions, figures = Conditions(step=0.03, draft=0.007, delay=0.01), Figures()
    first = replay([False] * 300, [3] * 300, AdaptiveController(figures, most=48), conditions)
    second = replay([False] * 300, [3] * 300, AdaptiveController(figures, most=48), conditions)
    assert second.drafted < 0.5 * first.drafted


def test_under_the_cost_policy_tokens_go_in_whole_groups() -> None:
    controller = AdaptiveController(known(), most=48, saves_passes=True)
    ahead: list[int] = []
    while not (decision := controller.decide(outlook(ahead, unsent=len(ahead)))).send:
        assert decision.draft
        ahead.append(15)
    assert 2 <= len(ahead) <= 8
    assert (decision.draft, decision.continues) == (False, False)
    assert controller.decide(outlook(ahead, unsent=0)).draft  # the next group, while this one is on its way


def test_the_cost_policy_saves_passes() -> None:
    right, confidences = [True, True, True, False] * 150, [3, 3, 3, 30] * 150
    near = {"step": 0.03, "draft": 0.007, "delay": 0.0025}
    latency = replay(right, confidences, AdaptiveController(known(rtt=0.005), most=48), Conditions(**near))
    cost = replay(
        right, confidences, AdaptiveController(known(rtt=0.005), most=48, saves_passes=True),
        Conditions(**near, waits=True),
    )  # fmt: skip
    assert cost.passes < 0.8 * latency.passes
    assert cost.seconds < 600 * 0.03
