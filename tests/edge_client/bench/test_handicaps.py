from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from draftwire.edge_client import device as device_module
from draftwire.edge_client.bench import handicaps
from draftwire.edge_client.bench.handicaps import Handicap, HandicappedDevice
from draftwire.edge_client.device import Drafted
from draftwire.edge_client.proposer import Proposer
from draftwire.protocol.sampling import SamplingParams

VOCABULARY = 1000
BEST = 3


class FakeClock:
    """Time that passes only when somebody sleeps, or works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[tuple[float, str]] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append((seconds, threading.current_thread().name))
        self.now += seconds


class FakeDrafter:
    """Always for the same token."""

    context_length = 100
    vocabulary_size = VOCABULARY
    cpu_seconds = 0.0

    def __init__(self, clock: FakeClock, *, seconds: float) -> None:
        self.clock = clock
        self.seconds = seconds
        self.fed: list[list[int]] = []

    def sync(self, tokens: list[int]) -> None:
        del tokens

    def feed(self, tokens: list[int]) -> Any:
        self.fed.append(tokens)
        self.clock.now += self.seconds
        logits = np.zeros(VOCABULARY, np.float32)
        logits[BEST] = 9
        return logits


Maker = Callable[..., Any]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(handicaps, "time", clock)
    return clock


@pytest.fixture
async def opened(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Maker]:
    """Makes a device with a handicap, and the drafter that is loaded on it."""
    async with AsyncExitStack() as stack:

        def make(handicap: Handicap, *, seconds: float = 0.01) -> tuple[HandicappedDevice, FakeDrafter]:
            drafter = FakeDrafter(clock, seconds=seconds)
            monkeypatch.setattr(device_module, "_load_drafter", lambda *_: drafter)
            device = HandicappedDevice(SimpleNamespace(), handicap)  # type: ignore[arg-type]
            stack.push_async_callback(device.close)
            return device, drafter

        yield make


async def draft(device: HandicappedDevice, drafter: FakeDrafter, *, times: int = 1) -> list[Drafted]:
    proposer = Proposer(SamplingParams(temperature=0.0), seed=1, prompt_length=2)
    return [await device.draft(drafter, [1, 2], proposer) for _ in range(times)]  # type: ignore[arg-type]


async def test_a_useless_draft_is_sure_of_anything_and_costs_the_same(opened: Maker, clock: FakeClock) -> None:
    device, drafter = opened(Handicap(useless=True))
    drafted = await draft(device, drafter, times=50)
    tokens = [each.proposal.token for each in drafted]
    assert all(0 <= token < VOCABULARY for token in tokens)
    assert len(set(tokens)) > 40
    assert all(each.confidence <= 8 for each in drafted)
    assert drafter.fed == [[2]] * 50
    assert clock.slept == []


async def test_a_slow_draft_sleeps_in_its_own_thread_for_what_is_missing(opened: Maker, clock: FakeClock) -> None:
    device, drafter = opened(Handicap(steps=2.0), seconds=0.01)
    device.step_seconds = 0.03
    [drafted] = await draft(device, drafter)
    [(seconds, thread)] = clock.slept
    assert seconds == pytest.approx(0.05)
    assert thread.startswith("draftwire-draft")
    assert drafted.seconds == pytest.approx(0.06)
    assert drafted.proposal.token == BEST


@pytest.mark.parametrize(("step", "seconds"), [(0.0, 0.01), (0.03, 0.07)])
async def test_it_does_not_sleep_before_the_step_is_known_or_where_it_is_slow_anyway(
    opened: Maker, clock: FakeClock, step: float, seconds: float
) -> None:
    device, drafter = opened(Handicap(steps=2.0), seconds=seconds)
    device.step_seconds = step
    [drafted] = await draft(device, drafter)
    assert clock.slept == []
    assert drafted.proposal.token == BEST
