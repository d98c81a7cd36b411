"""Guardrails over a real engine, stepped by hand: rules heeded, streams measured, switches told once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.guardrails.breaker import State
from draftwire.cloud_verifier.guardrails.guardrails import Guardrails
from draftwire.cloud_verifier.guardrails.rule import OFF, ON, SHADOW, Rule
from draftwire.cloud_verifier.guardrails.thresholds import Thresholds
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.messages import End, Open
from draftwire.protocol.sampling import SamplingParams

from ..engine.engine_rig import GREEDY, LIMITS, PROMPT, Device, V, alone, finish, step

STRICT = Thresholds(min_acceptance=0.5, min_samples=3, cooldown_seconds=10.0, good_windows=1, probe_share=1.0)


class Service:
    """An engine that guardrails decide for, and their clock."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.switches: list[tuple[str, str, str]] = []
        self.guardrails = Guardrails(
            **options, switched=lambda *told: self.switches.append(told), clock=lambda: self.now
        )
        self.engine = Engine(
            TableTarget(vocabulary_size=V, seed=3),
            limits=LIMITS,
            observer=self.guardrails.observer,
            speculation=self.guardrails.decide,
        )

    def generate(self, *, route: str = "", tenant: str = "anybody", right: bool = True, drafts: bool = True) -> End:
        """One stream whose first draft tokens are all right, or all wrong; the text is the target's in any case."""
        device = Device(self.engine)
        device.route, device.tenant, device.request_id = route, Tenant(name=tenant), "r"
        expected = alone(GREEDY, 12)
        device.open(1, max_tokens=12, drafting=drafts)
        if drafts:
            guess = expected[:8] if right else [(token + 1) % V for token in expected[:8]]
            device.draft(len(PROMPT), guess)
        finish(self.engine)
        ended = device.ended[1]
        assert isinstance(ended, End)
        assert device.sequences[1][len(PROMPT) :] == expected
        return ended


def request(stream: int = 1) -> Open:
    return Open(
        stream=stream, token_ids=(1,), prompt_length=1, params=SamplingParams(), max_tokens=1, seed=0, drafting=True
    )


@pytest.mark.parametrize(
    ("route", "key", "decided"),
    [
        (ON, ON, Speculation.ON),
        (ON, SHADOW, Speculation.SHADOW),
        (SHADOW, ON, Speculation.SHADOW),
        (OFF, SHADOW, Speculation.OFF),
        (SHADOW, OFF, Speculation.OFF),
        (Rule(share=1e-9), ON, Speculation.OFF),
        (SHADOW, Rule(share=1e-9), Speculation.OFF),
    ],
)
def test_the_stricter_of_route_and_key_wins(route: Rule, key: Rule, decided: Speculation) -> None:
    service = Service(routes={"chat": route}, keys={"alice": key})
    device = Device(service.engine)
    device.route, device.tenant = "chat", Tenant(name="alice")
    assert service.guardrails.decide(device, request()) is decided
    device.route, device.tenant = "", Tenant(name="bob")
    assert service.guardrails.decide(device, request()) is Speculation.ON


def test_a_canary_is_the_same_streams_every_time() -> None:
    service, other = (Service(routes={"": Rule(share=0.5)}) for _ in range(2))
    device = Device(service.engine)
    device.request_id = "abc"
    decided = [service.guardrails.decide(device, request(stream)) for stream in range(1, 40)]
    assert decided == [other.guardrails.decide(device, request(stream)) for stream in range(1, 40)]
    assert set(decided) == {Speculation.ON, Speculation.OFF}


def test_rules_reach_the_engine() -> None:
    service = Service(routes={"plain": OFF, "trial": SHADOW})
    on, off, shadow = (service.generate(route=route) for route in ("", "plain", "trial"))
    assert on.accepted_tokens == 8
    assert on.target_passes < 12
    assert (off.drafted_tokens, off.target_passes) == (0, 12)
    assert shadow.target_passes == 12
    assert shadow.drafted_tokens > 0


def test_bad_drafts_trip_their_route_alone_and_it_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(routes={"chat": ON}, thresholds=STRICT)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            assert service.generate(route="chat", right=False).drafted_tokens > 0
        assert service.guardrails.states() == {"": State.HEALTHY, "chat": State.TRIPPED}
        assert service.generate(route="chat").drafted_tokens == 0
        assert service.generate().drafted_tokens > 0
        service.now += 10.0
        for _ in range(3):
            assert service.generate(route="chat").accepted_tokens == 8
    assert service.switches == [
        ("chat", "tripped", "acceptance"),
        ("chat", "probing", "cooldown"),
        ("chat", "healthy", "recovered"),
    ]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    assert "'chat'" in caplog.text


def test_clients_without_drafts_and_those_that_leave_do_not_trip_anything() -> None:
    service = Service(thresholds=STRICT)
    for _ in range(10):
        service.generate(drafts=False)
        device = Device(service.engine)
        device.open(1, max_tokens=50)
        step(service.engine)
        service.engine.drop(device)
        step(service.engine)
    assert service.switches == []
    assert service.guardrails.observer._timings == {}  # type: ignore[attr-defined]


def test_faults_of_the_verifier_trip_it(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service(thresholds=Thresholds(max_error_rate=0.5, min_samples=2))

    def fail(*_: Any) -> None:
        raise RuntimeError("no step")

    monkeypatch.setattr(service.engine._target, "step", fail)
    for _ in range(2):
        device = Device(service.engine)
        device.open(1)
        while service.engine.active_streams or 1 not in device.ended:
            step(service.engine)
    assert service.switches == [("", "tripped", "errors")]


def test_streams_with_and_without_drafts_are_timed() -> None:
    service = Service(thresholds=Thresholds(max_tpot_ratio=1.0, min_samples=2, baseline_share=0.0))
    service.generate(drafts=False)
    breaker = service.guardrails._breakers[""]
    (sample,) = breaker._baseline
    assert sample.tpot is not None
    assert sample.tpot > 0
    service.generate()
    assert [sample.drafted for sample in breaker._drafting] == [8]


def test_what_was_measured_survives_a_reload_and_other_routes_share_the_nameless_ones() -> None:
    service = Service(routes={"chat": ON, "code": ON}, thresholds=STRICT)
    for _ in range(3):
        service.generate(route="chat", right=False)
    service.guardrails.replace(routes={"chat": ON}, thresholds=STRICT, route_thresholds={"chat": STRICT})
    assert service.guardrails.states() == {"": State.HEALTHY, "chat": State.TRIPPED}
    for _ in range(3):
        service.generate(route="code", right=False)
    assert service.guardrails.states()[""] is State.TRIPPED
    service.guardrails.replace()
    assert service.generate().accepted_tokens == 8  # nothing is watched any more
