"""More work than there is time for, in simulated time: what is taken is finished as fast as ever, the rest is told."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import End, Error, Limits, Message, Opened
from numpy.typing import NDArray

from .engine_rig import Device, V, make

PLACES, LINE, PATIENCE = 8, 12, 4.0
PROMPT_TOKENS, ANSWER_TOKENS = 40, 30
FULL = PLACES / (0.03 + 0.0012 * PLACES) / ANSWER_TOKENS  # answers a second, prompts not counted


class Clock:
    """Stands still but for the steps of the target."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TimedTarget(TableTarget):
    """A step over M tokens takes 30 + 1.2 M ms."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(vocabulary_size=V, seed=3, eos_bias=-1e4)
        self._clock = clock

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        self._clock.now += 0.03 + 0.0012 * sum(len(block.tokens) for block in blocks)
        return super().step(blocks)


@dataclass
class Outcome:
    answers: int = 0
    busy: int = 0
    asked: int = 0
    waits: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    most_waiting: int = 0
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        return self.answers / self.seconds


class Customer(Device):
    """One request."""

    def __init__(self, engine: object, clock: Clock, outcome: Outcome) -> None:
        super().__init__(engine)  # type: ignore[arg-type]
        self._clock, self._outcome, self._asked_at = clock, outcome, clock.now
        outcome.asked += 1

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            match message:
                case Opened():
                    self._outcome.waits.append(self._clock.now - self._asked_at)
                case End():
                    self._outcome.answers += 1
                    self._outcome.latencies.append(self._clock.now - self._asked_at)
                case Error():
                    assert message.code is ErrorCode.BUSY
                    assert message.retry_after_ms is not None
                    self._outcome.busy += 1


def serve(load: float, monkeypatch: pytest.MonkeyPatch, *, seconds: float = 60.0) -> Outcome:
    """``load`` times the requests a second that keep all places busy, for so many simulated seconds."""
    clock, outcome, random_ = Clock(), Outcome(), random.Random(5)
    monkeypatch.setattr(time, "monotonic", clock)
    limits = Limits(max_context=2000, max_streams=PLACES, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
    engine, _ = make(TimedTarget(clock), limits=limits, most_waiting=LINE, wait_seconds=PATIENCE)
    began, next_at = clock.now, clock.now
    while clock.now < began + seconds:
        while next_at <= clock.now:
            customer = Customer(engine, clock, outcome)
            prompt = [random_.randrange(V) for _ in range(PROMPT_TOKENS)]
            customer.open(1, prompt=prompt, max_tokens=ANSWER_TOKENS, drafting=False)
            next_at += random_.expovariate(load * FULL)
        if engine.step() is not None:
            clock.now = max(clock.now, next_at)
        outcome.most_waiting = max(outcome.most_waiting, engine.gauges().waiting)
    outcome.seconds = clock.now - began
    assert outcome.asked >= outcome.answers + outcome.busy
    assert outcome.asked - outcome.answers - outcome.busy <= PLACES + LINE + 1  # those still there
    return outcome


def test_four_times_the_load_finishes_as_much_and_tells_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    loads = {load: serve(load, monkeypatch) for load in (0.5, 1.0, 2.0, 4.0)}
    peak = max(outcome.goodput for outcome in loads.values())
    assert loads[0.5].busy == 0
    assert loads[4.0].goodput >= 0.9 * peak
    assert loads[4.0].busy > loads[4.0].answers
    for outcome in loads.values():
        assert outcome.most_waiting <= LINE
        assert max(outcome.waits) <= PATIENCE + 0.5  # and a step
        p99 = sorted(outcome.latencies)[int(0.99 * len(outcome.latencies))]
        assert p99 <= PATIENCE + 3 * ANSWER_TOKENS * (0.03 + 0.0012 * PLACES)


def test_one_that_asks_for_everything_leaves_others_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with 20 times the requests of another: the modest one is served as it comes."""
    clock, greedy, modest, random_ = Clock(), Outcome(), Outcome(), random.Random(5)
    monkeypatch.setattr(time, "monotonic", clock)
    limits = Limits(max_context=2000, max_streams=PLACES, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
    engine, _ = make(TimedTarget(clock), limits=limits, most_waiting=LINE, wait_seconds=PATIENCE)
    began = clock.now
    while clock.now < began + 40:
        for outcome, name, chance in ((greedy, "greedy", 0.9), (modest, "modest", 0.045)):
            if random_.random() < chance:
                customer = Customer(engine, clock, outcome)
                customer.tenant = Tenant(name=name)
                prompt = [random_.randrange(V) for _ in range(PROMPT_TOKENS)]
                customer.open(1, prompt=prompt, max_tokens=ANSWER_TOKENS, drafting=False)
        if engine.step() is not None:
            clock.now += 0.03
    assert greedy.busy > 50
    assert modest.busy == 0
    assert modest.answers > 10
    assert np.mean(modest.waits) < np.mean(greedy.waits) / 2
