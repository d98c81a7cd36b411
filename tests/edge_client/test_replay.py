"""The simulation itself: against the closed model where that applies, and what must always hold."""

from __future__ import annotations

import random

import pytest
from draftwire.edge_client.gamma.choice import CONTROLLERS, ControllerName, make_controller
from draftwire.edge_client.gamma.figures import Figures
from draftwire.edge_client.gamma.fixed import FixedController, SerialController
from draftwire.edge_client.prediction import predict
from draftwire.edge_client.replay import Conditions, replay

CHANCE = random.Random(5)
RIGHT = [CHANCE.random() < 0.75 for _ in range(1000)]
BYTES = [8] * len(RIGHT)


def test_without_a_right_token_the_speed_is_the_targets() -> None:
    played = replay([False] * 50, BYTES[:50], FixedController(8), Conditions(step=0.03, draft=0.007, delay=0.01))
    assert (played.passes, played.seconds) == (50, pytest.approx(50 * 0.03))


@pytest.mark.parametrize("rtt", [0.005, 0.02, 0.05, 0.1, 0.2])
def test_it_agrees_with_the_closed_model_of_continuous_drafting(rtt: float) -> None:
    """Where a path is drafted without bound and each token sent at once, both describe the same thing."""
    played = replay(
        RIGHT, BYTES, FixedController(64), Conditions(step=0.03, draft=0.007, delay=rtt / 2, per_token=0.0006)
    )
    model = predict(RIGHT, mode="run_ahead", step=0.03, draft=0.007, rtt=rtt, slope=0.02)
    # The model starts each path at once; a device ends the token it is drafting first.
    assert played.seconds / len(RIGHT) == pytest.approx(model.seconds_per_token, rel=0.06)
    assert played.passes / len(RIGHT) == pytest.approx(model.passes_per_token, rel=0.06)


def test_serial_rounds_wait_for_the_network() -> None:
    conditions = Conditions(step=0.03, draft=0.007, delay=0.05, waits=True)
    played = replay(RIGHT, BYTES, SerialController(4), conditions)
    model = predict(RIGHT, mode="serial", step=0.03, draft=0.007, rtt=0.1, serial_lengths=[4])
    assert played.seconds / len(RIGHT) == pytest.approx(model.seconds_per_token, rel=0.03)
    assert played.frames == pytest.approx(played.passes, abs=2)


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("delay", [0.0, 0.0025, 0.3])
def test_every_controller_gets_to_the_end(name: ControllerName, waits: bool, delay: float) -> None:
    controller = make_controller(name, look_ahead=None, figures=Figures(), saves_passes=waits)
    played = replay(RIGHT[:150], BYTES[:150], controller, Conditions(step=0.03, draft=0.007, delay=delay, waits=waits))
    assert played.tokens == 150
    assert 0 < played.passes <= 150


def test_conditions_may_change() -> None:
    near, far = Conditions(step=0.03, draft=0.007, delay=0.001), Conditions(step=0.03, draft=0.007, delay=0.2)
    both = replay(RIGHT, BYTES, FixedController(16), lambda now: near if now < 8 else far)
    alone = [replay(RIGHT, BYTES, FixedController(16), conditions).seconds for conditions in (near, far)]
    assert alone[0] < both.seconds < alone[1]
