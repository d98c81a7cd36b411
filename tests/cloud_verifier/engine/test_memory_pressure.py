"""Streams that do not all fit into memory: what is computed twice, who waits for whom, and who gives way."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import Observer
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block, OutOfKvMemoryError
from draftwire.protocol.messages import Limits
from numpy.typing import NDArray

from .engine_rig import GREEDY, Device, V, alone, finish, make, step

LIMITS = Limits(max_context=20_000, max_streams=32, max_message_bytes=1 << 20, max_draft_tokens=64, max_backlog=24)


class Watch(Observer):
    """Counts who had to give a place up."""

    def __init__(self) -> None:
        self.preempted_of: Counter[str] = Counter()
        self.opened_of: list[str] = []

    def preempted(self, stream: VerifierStream) -> None:
        self.preempted_of[stream.owner.tenant.name] += 1

    def opened(self, stream: VerifierStream, *, waited: float) -> None:  # noqa: ARG002
        self.opened_of.append(f"{stream.owner.tenant.name} {stream.request.stream}")


class CountingTarget(TableTarget):
    """Counts the tokens that it computes."""

    def __init__(self, budget: int) -> None:
        super().__init__(vocabulary_size=V, seed=3, eos_bias=-1e4, max_context=20_000, kv_budget=budget)
        self.computed = 0
        self.fails_together = False

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        if self.fails_together and len(blocks) > 1:
            raise RuntimeError("no batch")
        rows = super().step(blocks)
        self.computed += sum(len(block.tokens) for block in blocks)
        return rows


def engine_of(budget: int, **options: Any) -> tuple[Engine, CountingTarget, Watch]:
    target, watch = CountingTarget(budget), Watch()
    options = {"most_waiting": 100, "wait_seconds": 1000.0, "prefix_tokens": 0, "limits": LIMITS, **options}
    engine, _ = make(target, observer=watch, **options)
    return engine, target, watch


def device_of(engine: Engine, name: str) -> Device:
    device = Device(engine)
    device.tenant = Tenant(name=name)
    return device


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [1 + (start + 7 * index) % (V - 1) for index in range(length)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only item; a little of it passes at each look."""
    now = [1000.0]

    def look() -> float:
        now[0] += 1e-6
        return now[0]

    monkeypatch.setattr(time, "monotonic", look)
    return now


# --- places come with memory ----------------------------------------------------------------------------------------


def test_no_prompt_is_read_twice_because_newcomers_were_let_in_without_memory_for_theirs() -> None:
    engine, target, watch = engine_of(400, prefill_chunk=16)
    device = device_of(engine, "a")
    device.open(1, prompt=prompt_of(50), max_tokens=60, drafting=False)
    for stream in range(2, 12):
        device.open(stream, prompt=prompt_of(120, stream), max_tokens=20, drafting=False)
    finish(engine)
    assert watch.preempted_of.total() == 0
    assert target.computed == 50 + 60 - 1 + 10 * (120 + 20 - 1)


def test_streams_that_outgrow_memory_are_read_again_about_once_for_each_that_ends() -> None:
    engine, target, watch = engine_of(1500, prefill_chunk=64)
    device = device_of(engine, "a")
    for stream in range(1, 13):
        device.open(stream, prompt=prompt_of(60, stream), max_tokens=150, drafting=False)
    finish(engine)
    assert 0 < watch.preempted_of.total() <= 12
    assert target.computed < 1.5 * 12 * 210
    for stream in range(1, 13):
        assert len(device.answer(stream)) == 150


def test_two_that_come_together_do_not_both_count_on_the_same_memory() -> None:
    engine, _, watch = engine_of(150)
    device = device_of(engine, "a")
    for stream in (1, 2):
        device.open(stream, prompt=prompt_of(80), max_tokens=10)
    step(engine)
    assert watch.opened_of == ["a 1"]
    finish(engine)
    assert watch.opened_of == ["a 1", "a 2"]


def test_a_stream_by_itself_may_take_all_the_memory_there_is() -> None:
    engine, target, watch = engine_of(700)
    device = device_of(engine, "a")
    device.open(1, prompt=prompt_of(100), max_tokens=600, drafting=False)
    finish(engine)
    assert len(device.answer()) == 600
    assert watch.preempted_of.total() == 0
    assert target.computed == 699


# --- who waits for whom ---------------------------------------------------------------------------------------------


def test_who_gave_its_place_up_is_not_passed_by_newcomers_that_need_less() -> None:
    engine, _, watch = engine_of(560)
    device = device_of(engine, "a")
    device.open(1, prompt=prompt_of(200), max_tokens=250, drafting=False)
    device.open(2, prompt=prompt_of(200, 5), max_tokens=100, drafting=False)
    while not watch.preempted_of:
        step(engine)
    device.open(3, prompt=prompt_of(10), max_tokens=5, drafting=False)
    finish(engine)
    assert next(iter(device.ended)) == 1, "the newcomer would have been done long before"
    assert watch.preempted_of.total() == 1


def test_a_newcomer_without_memory_is_passed_for_half_its_patience_and_then_waited_for(clock: list[float]) -> None:
    engine, _, watch = engine_of(500, wait_seconds=10.0)
    long, big, small = (device_of(engine, name) for name in ("long", "big", "small"))
    long.open(1, prompt=prompt_of(20), max_tokens=400, drafting=False)
    step(engine)
    big.open(1, prompt=prompt_of(450), max_tokens=10, drafting=False)
    small.open(1, prompt=prompt_of(5), max_tokens=2, drafting=False)
    step(engine)
    assert watch.opened_of == ["long 1", "small 1"]
    clock[0] += 4.9
    small.open(2, prompt=prompt_of(5), max_tokens=2, drafting=False)
    step(engine)
    assert watch.opened_of[-1] == "small 2"
    clock[0] += 0.2
    step(engine)  # in which that one ends
    small.open(3, prompt=prompt_of(5), max_tokens=2, drafting=False)
    step(engine)
    assert watch.opened_of[-1] == "small 2"
    engine.cancel(long, 1)
    finish(engine)
    assert watch.opened_of[-2:] == ["big 1", "small 3"]


def test_what_cannot_be_placed_yet_does_not_cost_the_others_their_prefixes() -> None:
    engine, _, _ = engine_of(700, prefix_tokens=1000)
    device, other = device_of(engine, "a"), device_of(engine, "b")
    device.open(1, prompt=prompt_of(64), max_tokens=1, drafting=False)
    finish(engine)
    assert engine.gauges().prefix_tokens == 64
    device.open(2, prompt=prompt_of(8, 3), max_tokens=300, drafting=False)
    step(engine)
    other.open(1, prompt=prompt_of(650), max_tokens=1, drafting=False)
    step(engine)
    assert engine.gauges().waiting == 1
    assert engine.gauges().prefix_tokens >= 64


def test_the_prefix_that_a_newcomer_starts_with_is_the_last_to_go_for_it() -> None:
    engine, target, _ = engine_of(200, prefix_tokens=1000)
    device = device_of(engine, "a")
    device.open(1, prompt=prompt_of(48), max_tokens=1, drafting=False)
    finish(engine)
    device.open(2, prompt=prompt_of(48, 5), max_tokens=1, drafting=False)
    finish(engine)
    before = target.computed
    device.open(3, prompt=[*prompt_of(48), 1], max_tokens=80, drafting=False)
    step(engine)
    assert target.computed - before == 1


# --- who gives way --------------------------------------------------------------------------------------------------


def test_one_with_many_streams_does_not_push_out_anothers_only_one() -> None:
    engine, _, watch = engine_of(2000)
    hog, modest = device_of(engine, "hog"), device_of(engine, "modest")
    for stream in range(1, 21):
        hog.open(stream, prompt=prompt_of(20, stream), max_tokens=200, drafting=False)
    step(engine)
    modest.open(1, prompt=prompt_of(100), max_tokens=250, drafting=False)
    while 1 not in modest.ended:
        step(engine)
    assert len(modest.answer()) == 250
    assert watch.preempted_of["modest"] == 0
    assert watch.preempted_of["hog"] > 3
    finish(engine)
    assert all(len(hog.answer(stream)) == 200 for stream in range(1, 21))


def test_of_those_with_several_the_one_that_holds_most_gives_its_newest() -> None:
    engine, _, watch = engine_of(1250)
    large, small = device_of(engine, "large"), device_of(engine, "small")
    for stream in (1, 2):
        large.open(stream, prompt=prompt_of(400, stream), max_tokens=200, drafting=False)
    for stream in (1, 2, 3):
        small.open(stream, prompt=prompt_of(10, stream), max_tokens=100, drafting=False)
    step(engine)
    while not watch.preempted_of:
        step(engine)
    assert watch.preempted_of == Counter({"large": 1})
    waiting = [stream for stream in engine._roster if stream.slot is None]
    assert [stream.request.stream for stream in waiting] == [2]
    finish(engine)


def test_where_each_has_one_the_newest_gives_way_whatever_it_holds() -> None:
    engine, _, watch = engine_of(700)
    large, small = device_of(engine, "large"), device_of(engine, "small")
    large.open(1, prompt=prompt_of(400), max_tokens=200, drafting=False)
    small.open(1, prompt=prompt_of(10), max_tokens=250, drafting=False)
    finish(engine)
    assert watch.preempted_of == Counter({"small": 1})


def test_who_has_none_goes_before_one_of_many_that_gave_its_place_up() -> None:
    engine, _, watch = engine_of(600)
    hog, modest = device_of(engine, "hog"), device_of(engine, "modest")
    for stream in (1, 2, 3):
        hog.open(stream, prompt=prompt_of(100, stream), max_tokens=400, drafting=False)
    while not watch.preempted_of:
        step(engine)
    modest.open(1, prompt=prompt_of(10), max_tokens=10, drafting=False)
    step(engine)
    assert watch.opened_of[-1] == "modest 1"
    finish(engine)
    assert len(modest.answer()) == 10
    assert all(len(hog.answer(stream)) == 400 for stream in (1, 2, 3))


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_any_number_of_prefixes_may_have_to_go_for_one_step() -> None:
    class Crowded(CountingTarget):
        """Needs all that was saved for a stream's second step."""

        def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
            if blocks[0].start == 4 and self._saved:
                raise OutOfKvMemoryError
            return super().step(blocks)

    target = Crowded(1 << 20)
    engine, device = make(target, limits=LIMITS, prefix_tokens=1 << 16, prefill_chunk=4096, step_tokens=4096)
    device.open(1, prompt=prompt_of(16_000), max_tokens=1, drafting=False)
    finish(engine)
    assert engine.gauges().prefix_tokens == 16_000
    device.open(2, drafting=False)
    finish(engine)
    assert engine.gauges().prefix_tokens < 100
    assert len(device.answer(2)) == 20


def test_a_stream_whose_keys_and_values_were_lost_for_want_of_memory_is_computed_again() -> None:
    class Losing(TableTarget):
        """Loses the second stream in its fifth step."""

        steps = 0

        def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
            self.steps += 1
            if self.steps == 5:
                self._tokens[blocks[1].stream].clear()
                raise OutOfKvMemoryError
            return super().step(blocks)

    watch = Watch()
    engine, device = make(Losing(vocabulary_size=V, seed=3), observer=watch)
    for stream in (1, 2, 3):
        device.open(stream)
    finish(engine)
    assert watch.preempted_of.total() == 1
    assert [device.answer(stream) for stream in (1, 2, 3)] == [alone(GREEDY)] * 3


def test_a_batch_that_fails_while_memory_is_out_fails_nobody() -> None:
    """Taken apart, its first stream needs the memory of one that is still to be tried."""
    engine, target, watch = engine_of(3 * 66)
    devices = [device_of(engine, "a") for _ in range(3)]
    for device in devices:
        device.open(1, prompt=prompt_of(2), max_tokens=150, drafting=False)
    for _ in range(65):
        step(engine)
    target.fails_together = True
    step(engine)
    target.fails_together = False
    assert watch.preempted_of.total() > 0
    finish(engine)
    assert [len(device.answer(1)) for device in devices] == [150] * 3
