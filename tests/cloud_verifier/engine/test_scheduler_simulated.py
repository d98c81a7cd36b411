"""What the policy is worth: tokens a second and target passes a token, in simulated time.

The bounds leave room for the text: a few hundred tokens of one seed differ by some per cent from those of another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from draftwire.cloud_verifier.engine.scheduler import RunAhead, Scheduler
from draftwire.protocol.messages import Policy

from .simulation import Device, Simulation, alone, jittery, spiky, steady, text_in_runs

TOKENS = 3000
TEXT = text_in_runs(TOKENS, seed=1)
ROUND_TRIPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2)


def never_holding() -> Scheduler:
    return Scheduler(run_ahead=RunAhead.ALWAYS)


@cache
def gain_of_holding(step: float, rtt: float) -> float:
    """How much faster a stream is for now and then waiting for a draft: 0.01 is 1 %."""
    draft = 0.007 if step < 0.04 else 0.008
    without, _ = alone(TEXT, steady(rtt), step=step, draft=draft, scheduler=never_holding())
    seconds, _ = alone(TEXT, steady(rtt), step=step, draft=draft)
    return without / seconds - 1


def cloud_only(tokens: int, step: float) -> float:
    """Seconds of a stream that nobody is said to draft for."""
    simulation = Simulation(Scheduler(), step)
    client = simulation.add(tokens, drafting=False)
    simulation.run()
    return client.seconds


# --- latency ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.029, 0.05])
@pytest.mark.parametrize("rtt", ROUND_TRIPS)
def test_holding_costs_nothing(step: float, rtt: float) -> None:
    assert gain_of_holding(step, rtt) > -0.01


def test_holding_helps_where_drafts_come_shortly_after_a_commit() -> None:
    assert gain_of_holding(0.029, 0.002) > 0.01
    assert gain_of_holding(0.029, 0.01) > 0.01
    assert gain_of_holding(0.05, 0.02) > 0.005


@pytest.mark.parametrize("rtt", [0.002, 0.02, 0.1])
@pytest.mark.parametrize("kind", ["spikes", "jitter"])
def test_holding_costs_nothing_on_an_unsteady_network(kind: str, rtt: float) -> None:
    delays: dict[str, Callable[[int], Callable[[], float]]] = {
        "spikes": lambda seed: spiky(rtt, seed=seed, chance=0.05),
        "jitter": lambda seed: jittery(rtt, seed=seed, up_to=0.02),
    }
    holding = sum(alone(TEXT, delays[kind](seed), step=0.029)[0] for seed in range(4))
    without = sum(alone(TEXT, delays[kind](seed), step=0.029, scheduler=never_holding())[0] for seed in range(4))
    assert holding < 1.02 * without  # the two do not see the same delays


@pytest.mark.parametrize("policy", Policy)
def test_a_silent_client_is_as_fast_as_one_that_never_promised_drafts(policy: Policy) -> None:
    simulation = Simulation(Scheduler(), 0.029)
    client = simulation.add(100, policy=policy)
    simulation.run()
    patience = 0.0 if policy is Policy.LATENCY else 0.5 + 0.25 + 0.125 + 0.0625
    assert client.seconds <= cloud_only(100, 0.029) + patience + 1e-9


@pytest.mark.parametrize("rtt", [0.002, 0.02, 0.1])
def test_a_client_that_stops_drafting_costs_next_to_nothing(rtt: float) -> None:
    text = text_in_runs(200, seed=2)
    half, _ = alone(text, steady(rtt), step=0.029, until=100)
    without, _ = alone(text, steady(rtt), step=0.029, until=100, scheduler=never_holding())
    assert 200 * half < cloud_only(200, 0.029)
    assert half < 1.02 * without


# --- cost -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rtt", [0.005, 0.05, 0.2])
def test_the_cost_policy_takes_few_passes(rtt: float) -> None:
    seconds, passes = alone(TEXT, steady(rtt), step=0.029, policy=Policy.COST)
    _, ahead = alone(TEXT, steady(rtt), step=0.029)
    assert 0.2 < passes < 0.3 < ahead
    if rtt == 0.005:
        assert seconds < 0.029 / 1.3


def test_the_cost_policy_waits_for_more_than_the_first_token() -> None:
    """One token a pass, taken as soon as it is there, would commit two at the most."""
    assert alone(TEXT, steady(0.005), step=0.029, draft=0.02, policy=Policy.COST)[1] < 0.48


def test_rare_spikes_do_not_spoil_the_cost_policy() -> None:
    """One message in a hundred is 20 to 400 ms late; the passes taken meanwhile are all it costs."""
    assert alone(TEXT, spiky(0.01, seed=3, chance=0.01), step=0.029, policy=Policy.COST)[1] < 0.42


def test_a_client_that_stops_drafting_is_not_waited_for_again_and_again() -> None:
    text = text_in_runs(200, seed=2)
    half, _ = alone(text, steady(0.02), step=0.029, until=100, policy=Policy.COST)
    whole, _ = alone(text, steady(0.02), step=0.029, policy=Policy.COST)
    assert 200 * half < 100 * whole + cloud_only(100, 0.029) + 0.5


# --- several streams --------------------------------------------------------------------------------------------------


def batch(scheduler: Scheduler, *, drafted: int, plain: int, slope: float, tokens: int = 150) -> tuple[float, float]:
    """Tokens a second of all streams together, and target passes per token of those that are drafted for."""
    simulation = Simulation(scheduler, 0.029, slope)
    for seed in range(drafted):
        simulation.add(tokens, Device(text_in_runs(tokens, seed=seed), seconds=0.007, delay=steady(0.02)))
    for _ in range(plain):
        simulation.add(tokens, drafting=False)
    simulation.run()
    passes = sum(client.passes for client in simulation.clients[:drafted])
    return sum(tokens / client.seconds for client in simulation.clients), passes / (drafted * tokens)


def test_streams_side_by_side_do_not_wait_for_one_another() -> None:
    for drafted, plain in ((2, 2), (6, 0)):
        holding, _ = batch(Scheduler(), drafted=drafted, plain=plain, slope=0.03)
        without, _ = batch(never_holding(), drafted=drafted, plain=plain, slope=0.03)
        assert holding > 0.98 * without


class Untrimmed(Scheduler):
    """Takes every proposal there is."""

    def stepped(self, *_: object) -> None:
        """Learn nothing of steps."""


def test_trimming_keeps_drafts_from_slowing_a_full_step() -> None:
    crowd, _ = batch(Scheduler(), drafted=12, plain=0, slope=0.06)
    untrimmed, _ = batch(Untrimmed(), drafted=12, plain=0, slope=0.06)
    undrafted = Simulation(Scheduler(), 0.029, 0.06)
    for _ in range(12):
        undrafted.add(150, drafting=False)
    undrafted.run()
    assert crowd > 1.2 * untrimmed
    assert crowd > sum(150 / client.seconds for client in undrafted.clients)


def test_waiting_in_a_crowd_saves_passes() -> None:
    """And costs speed, which is why nobody does it unless asked to."""
    _, patient = batch(Scheduler(crowd=8), drafted=12, plain=0, slope=0.03)
    _, eager = batch(Scheduler(), drafted=12, plain=0, slope=0.03)
    assert patient < 0.9 * eager
