from __future__ import annotations

import json
import random
from typing import Any

import pytest
from draftwire.edge_client.gamma.controller import Round
from draftwire.edge_client.gamma.estimate import Recent, StepTime
from draftwire.edge_client.gamma.figures import Figures
from draftwire.edge_client.gamma.survival import Survival
from draftwire.protocol.errors import InvalidParameterError


def round_of(rtt: float | None, *, block: int | None = 0, tested: tuple[tuple[int, bool], ...] = ()) -> Round:
    return Round(
        now=0.0, tokens=1, tested=tested, depth=0, kept=True, block=block, rtt=rtt, queued=0.0, computed=0.03
    )  # fmt: skip


def test_a_spike_does_not_move_the_round_trip_and_is_forgotten() -> None:
    figures = Figures()
    for rtt in [0.02] * 9 + [0.42, 0.3]:
        figures.learn(round_of(rtt))
    assert figures.rtt.median == pytest.approx(0.02)
    assert figures.rtt.spread == pytest.approx(0.4)  # what a deadline must allow for, just now
    for _ in range(9):
        figures.learn(round_of(0.021))
    assert (figures.rtt.median, figures.rtt.spread) == (pytest.approx(0.021), pytest.approx(0.0))


def test_a_lasting_change_is_followed() -> None:
    figures = Figures()
    for rtt in [0.02] * 50 + [0.2] * 6:
        figures.learn(round_of(rtt))
    assert figures.rtt.median == pytest.approx(0.2)


def test_nothing_known() -> None:
    recent = Recent()
    assert (recent.known, recent.median, recent.spread) == (False, 0.0, 0.0)
    step = StepTime()
    assert (step.known, step.seconds(4), step.slope) == (False, 0.0, 0.0)
    assert Figures().predicted_gain() == 1.0


def test_the_step_time_is_a_line_over_the_block() -> None:
    step, noise = StepTime(), random.Random(1)
    for _ in range(200):
        block = noise.randrange(9)
        step.add(block, 0.03 + 0.002 * block + noise.uniform(-0.001, 0.001))
    assert step.seconds() == pytest.approx(0.03, rel=0.05)
    assert step.seconds(8) == pytest.approx(0.046, rel=0.05)


def test_a_step_beside_other_work_is_no_measurement() -> None:
    step = StepTime()
    for _ in range(30):
        step.add(0, 0.03)
        step.add(4, 0.034)
    step.add(4, 1.5)
    assert step.seconds(4) == pytest.approx(0.034, rel=0.05)


def test_blocks_of_one_size_give_no_slope() -> None:
    step = StepTime()
    for _ in range(30):
        step.add(3, 0.04)
    assert (step.slope, step.seconds(0)) == (0.0, pytest.approx(0.04))


def test_survival_learns_that_old_paths_live_longer() -> None:
    survival, chance = Survival(), random.Random(1)
    for _ in range(3000):
        for depth in range(12):
            right = chance.random() < (0.5 if depth < 2 else 0.95)
            survival.record(depth, right)
            if not right:
                break
    assert survival.hit(0) == pytest.approx(0.5, abs=0.2)
    assert survival.hit(6) > 0.85 > survival.hit(0) + 0.1


def test_the_prediction_knows_when_drafting_gains_nothing() -> None:
    def gain(*, draft: float = 0.007, rtt: float = 0.02, right: bool = True) -> float:
        figures = Figures()
        for _ in range(100):
            figures.learn(round_of(rtt, tested=((5, right),)))
            figures.draft.add(draft)
        return figures.predicted_gain()

    assert gain() > 1.2
    assert gain(rtt=0.2) < gain()
    assert gain(right=False) == pytest.approx(1.0, abs=0.02)
    assert gain(draft=0.06) == pytest.approx(1.0, abs=0.01)


def test_figures_can_be_kept() -> None:
    figures = Figures()
    for index in range(40):
        figures.learn(round_of(0.02, block=index % 3, tested=((index, index % 4 > 0),)))
        figures.draft.add(0.007)
    kept = json.loads(json.dumps(figures.dump()))
    again = Figures.load(kept)
    assert again.dump() == figures.dump()
    assert again.predicted_gain() == figures.predicted_gain()
    assert Figures.load({**kept, "version": 99}).dump() == Figures().dump()


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"version": 1}, {"draft": [-1.0]}, {"draft": ["x"]}, {"rtt": None}, {"step": {"single": [], "sums": [1.0]}},
        {"step": {"single": [], "sums": [float("nan")] * 5}}, {"calibration": [[2.0, 1.0]] * 8}, {"calibration": []},
        {"survival": [[1.0, 0.0]] * 32}, {"hit_rate": 1.5}, {"tested": float("inf")}, {"hit_rate": 10**400},
        {"draft": [10**400]},
        {"step": {"single": [0.03], "sums": [5e-324, 0.0, 0.03, 0.0, 0.0]}}, {"divergence": "often"},
    ],
)  # fmt: skip
def test_figures_that_are_none_are_refused(broken: dict[str, Any]) -> None:
    whole = Figures().dump() if broken and broken != {"version": 1} else {}
    with pytest.raises(InvalidParameterError, match="figures"):
        Figures.load({**whole, **broken})
