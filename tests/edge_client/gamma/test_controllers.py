"""The controllers that stand beside the default one."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from draftwire.edge_client.gamma.aimd import AimdController
from draftwire.edge_client.gamma.bandit import BanditController
from draftwire.edge_client.gamma.choice import CONTROLLERS, make_controller
from draftwire.edge_client.gamma.controller import Controller, Outlook, Round
from draftwire.edge_client.gamma.figures import Figures
from draftwire.edge_client.gamma.fixed import FixedController, LookAheadController, SerialController
from draftwire.edge_client.gamma.pid import PidController


def outlook(ahead: int, unsent: int = 0, room: int = 40) -> Outlook:
    return Outlook(now=0.0, ahead=[9] * ahead, unsent=unsent, room=room)


def tell(controller: Controller, *right: bool, now: float = 0.0, tokens: int = 1) -> None:
    controller.committed(
        Round(
            now=now, tokens=tokens, tested=[(9, hit) for hit in right], depth=0, kept=all(right), block=0, rtt=0.01,
            queued=0.0, computed=0.03,
        )
    )  # fmt: skip


def test_fixed_drafts_up_to_its_look_ahead_and_sends_each_token() -> None:
    controller = FixedController(3)
    for ahead, draft in ((0, True), (2, True), (3, False)):
        decision = controller.decide(outlook(ahead, unsent=min(1, ahead)))
        assert (decision.draft, decision.send, decision.continues) == (draft, ahead > 0, draft)
    assert not controller.decide(outlook(1, room=0)).draft


def test_serial_collects_sends_and_waits() -> None:
    controller = SerialController(2)
    steps = [controller.decide(outlook(*state)) for state in ((0, 0), (1, 1), (2, 2), (2, 0), (1, 0))]
    assert [(step.draft, step.send) for step in steps] == [
        (True, False), (True, False), (False, True), (False, False), (False, False),
    ]  # fmt: skip
    assert not steps[2].continues
    at_the_end = controller.decide(outlook(1, 1, room=0))
    assert (at_the_end.draft, at_the_end.send) == (False, True)


def test_aimd_grows_by_one_and_halves() -> None:
    controller = AimdController(10)
    seen = []
    for right in ([True], [True, True], [True, False], [], [False], [False], [False]):
        tell(controller, *right)
        seen.append(controller.look_ahead)
    assert seen == [5, 6, 3, 3, 1.5, 1, 1]
    for _ in range(20):
        tell(controller, True)
    assert controller.look_ahead == 10


def test_pid_holds_the_acceptance_rate() -> None:
    """Where deeper tokens are right less often, it settles at the depth whose share of right ones is its target."""
    controller, chance, depths = PidController(32, target=0.7), random.Random(2), []
    for _ in range(3000):
        tell(controller, chance.random() < 1.4 - controller.look_ahead / 10)  # 0.7 at a depth of seven
        depths.append(controller.look_ahead)
    assert 6 <= sum(depths[500:]) / len(depths[500:]) <= 8


@pytest.mark.parametrize(("right", "end"), [(True, 32), (False, 1)])
def test_pid_recovers_from_its_bounds(right: bool, end: int) -> None:
    controller = PidController(32)
    for _ in range(2000):
        tell(controller, right)
    assert controller.look_ahead == end
    for _ in range(60):  # an integral that had wound up would take as long as it took to wind
        tell(controller, not right)
    assert controller.look_ahead != end


def test_the_bandit_finds_the_best_arm_and_follows_it() -> None:
    controller, now = BanditController(32), 0.0

    def run(best: int, commits: int) -> list[int]:
        nonlocal now
        pulled = []
        for _ in range(commits):
            distance = abs(LADDER.index(int(controller.look_ahead)) - LADDER.index(best))
            now += 0.03 * (1 + 0.3 * distance)
            tell(controller, now=now)
            pulled.append(int(controller.look_ahead))
        return pulled[-400:]

    assert run(6, 3000).count(6) > 160
    assert run(24, 6000).count(24) > 160


LADDER: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def test_the_bandit_keeps_below_its_bound() -> None:
    controller = BanditController(5)
    for commit in range(500):
        tell(controller, now=float(commit))
        assert controller.look_ahead <= 4
    assert BanditController(1).look_ahead == 1


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("look_ahead", [None, 1, 5])
def test_by_name(name: str, look_ahead: int | None) -> None:
    controller = make_controller(name, look_ahead=look_ahead, figures=Figures())  # type: ignore[arg-type]
    ahead = 0
    while controller.decide(outlook(ahead, unsent=ahead)).draft and ahead < 100:
        ahead += 1
    assert 1 <= ahead <= (look_ahead or 48)
    if isinstance(controller, LookAheadController) and look_ahead is not None:
        assert controller.look_ahead <= look_ahead
