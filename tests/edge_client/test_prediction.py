"""The prediction against sums done by hand, and against a simulation that works in another way: event by event."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
from draftwire.edge_client.prediction import Prediction, predict, speedup
from draftwire.protocol.errors import InvalidParameterError


def is_near(found: Prediction, *, seconds: float, passes: float) -> bool:
    return (found.seconds_per_token, found.passes_per_token) == pytest.approx((seconds, passes), rel=1e-9)


def test_serial_by_hand() -> None:
    # 2 drafted, 0.1 on the wire, a pass with 2 draft tokens: 0.18 s. First both are right, and the target adds the
    # third token; then one is right, and the text ends with the token after it. 5 tokens in 2 rounds.
    found = predict(
        [True, True, False, True], mode="serial", step=0.05, draft=0.01, rtt=0.1, slope=0.1, serial_lengths=[2]
    )
    assert is_near(found, seconds=0.36 / 5, passes=2 / 5)


def test_serial_takes_the_best_length() -> None:
    right = [True] * 20 + [False]
    options: dict[str, Any] = {"mode": "serial", "step": 0.05, "draft": 0.01, "rtt": 0.1}
    each = [predict(right, **options, serial_lengths=[length]) for length in range(1, 17)]
    assert predict(right, **options).seconds_per_token == min(way.seconds_per_token for way in each)
    assert predict(right, **options, block=4) == predict(right, **options, serial_lengths=range(1, 5))


def test_run_ahead_by_hand() -> None:
    # A first step without a draft; meanwhile two tokens are drafted, of which the second is tested in the second
    # step, and the target adds the third.
    found = predict([True, True, False], mode="run_ahead", step=0.02, draft=0.01, rtt=0.0)
    assert is_near(found, seconds=0.04 / 3, passes=2 / 3)


def test_waiting_by_hand() -> None:
    # The draft is known at 0.01 + 0.01, and there at 0.03; the step takes 0.03 and commits it and one more.
    found = predict([True, False], mode="waiting", step=0.03, draft=0.01, rtt=0.02)
    assert is_near(found, seconds=0.03, passes=0.5)


def test_a_draft_that_is_never_right_costs_run_ahead_only_its_slope() -> None:
    wrong = [False] * 50
    assert speedup(wrong, mode="run_ahead", step=0.03, draft=0.01, rtt=0.05) == pytest.approx(1.0)
    assert speedup(wrong, mode="waiting", step=0.03, draft=0.01, rtt=0.05) < 0.5


def test_speedup_is_over_one_token_a_step() -> None:
    options: dict[str, Any] = {"mode": "waiting", "step": 0.03, "draft": 0.01, "rtt": 0.02}
    assert speedup([True, False], **options) == 0.03 / predict([True, False], **options).seconds_per_token


class Events:
    """Device, network and verifier as events on a clock."""

    def __init__(self, right: Sequence[bool], *, step: float, draft: float, rtt: float, slope: float, block: int):
        self.right, self.step, self.draft, self.half, self.slope = right, step, draft, rtt / 2, slope
        self.block = block
        self.queue: list[tuple[float, int, str, tuple[int, ...]]] = []
        self.order = itertools.count()
        self.drafting = -1  # the path that the device drafts for
        self.path = 0  # the path that the verifier takes drafts of
        self.arrived = self.committed = self.passes = 0
        self.idle = False

    def at(self, time: float, what: str, *data: int) -> None:
        heapq.heappush(self.queue, (time, next(self.order), what, data))

    def run(self, *, run_ahead: bool) -> Prediction:
        self.at(self.half, "told", 0, 0)
        self.begin(0.0, run_ahead)
        while True:
            now, _, what, data = heapq.heappop(self.queue)
            if what == "told":
                self.drafting = data[0]
                self.at(now + self.draft, "drafted", *data)
            elif what == "drafted" and data[0] == self.drafting:
                self.at(now + self.half, "arrived", *data)
                self.at(now + self.draft, "drafted", data[0], data[1] + 1)
            elif what == "arrived" and data[0] == self.path:
                self.arrived = data[1] + 1
                if self.idle:
                    self.begin(now, run_ahead)
            elif what == "stepped":
                self.commit(now, data[0])
                if self.committed >= len(self.right):
                    return Prediction(now / self.committed, self.passes / self.committed)
                self.begin(now, run_ahead)

    def begin(self, now: float, run_ahead: bool) -> None:
        count = min(max(0, self.arrived - self.committed), self.block)
        self.idle = count == 0 and not run_ahead
        if not self.idle:
            self.at(now + self.step * (1 + self.slope * count), "stepped", count)

    def commit(self, now: float, count: int) -> None:
        self.passes += 1
        good = list(itertools.takewhile(self.is_right, range(self.committed, self.committed + count)))
        self.committed += len(good) + 1
        if len(good) < count or not self.is_right(self.committed - 1):
            self.path += 1
            self.arrived = self.committed
            self.at(now + self.half, "told", self.path, self.committed)

    def is_right(self, position: int) -> bool:
        return position < len(self.right) and self.right[position]


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("rate", [0.3, 0.7, 0.95])
def test_continuous_drafting_as_simulated_event_by_event(run_ahead: bool, rate: float) -> None:
    dice = random.Random(f"{run_ahead} {rate}")
    for _ in range(60):
        right = [dice.random() < rate for _ in range(dice.randint(1, 120))]
        options: dict[str, Any] = {
            "step": dice.uniform(0.005, 0.06),
            "draft": dice.uniform(0.001, 0.03),
            "rtt": dice.uniform(0.001, 0.3),
            "slope": dice.choice([0.0, 0.04, 0.2]),
            "block": dice.choice([1, 4, 16]),
        }
        simulated = Events(right, **options).run(run_ahead=run_ahead)
        found = predict(right, mode="run_ahead" if run_ahead else "waiting", **options)
        assert is_near(found, seconds=simulated.seconds_per_token, passes=simulated.passes_per_token)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"right": []}, "right"),
        ({"step": 0.0}, "step"),
        ({"draft": 0.0}, "draft"),
        ({"rtt": -1.0}, "rtt"),
        ({"rtt": float("nan")}, "rtt"),
        ({"slope": -0.1}, "slope"),
        ({"block": 0}, "block"),
        ({"mode": "sideways"}, "mode"),
        ({"mode": "serial", "serial_lengths": [0]}, "serial_lengths"),
        ({"mode": "serial", "serial_lengths": []}, "serial_lengths"),
    ],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], named: str) -> None:
    options: dict[str, Any] = {"right": [True], "mode": "run_ahead", "step": 0.03, "draft": 0.01, "rtt": 0.05}
    with pytest.raises(InvalidParameterError) as caught:
        predict(**{**options, **changes})
    assert str(caught.value).startswith(f"{named}: ")
