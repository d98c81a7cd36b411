"""When speculation is taken away, and how slowly it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.guardrails.breaker import TABLE, Breaker, Event, State, Switch
from draftwire.cloud_verifier.guardrails.thresholds import Thresholds
from draftwire.cloud_verifier.guardrails.window import Sample
from hypothesis import given, settings
from hypothesis import strategies as st

ON, OFF, SHADOW = Speculation.ON, Speculation.OFF, Speculation.SHADOW
LIMITS = {"min_samples": 4, "cooldown_seconds": 60.0, "good_windows": 2, "window_seconds": 100.0}


class Route:
    """A breaker that is told of streams on a clock set by hand."""

    def __init__(self, **thresholds: Any) -> None:
        self.breaker = Breaker(Thresholds(**{**LIMITS, **thresholds}))
        self.now = 0.0
        self.switches: list[Switch] = []

    def end(self, count: int = 1, *, as_: Speculation = ON, **sample: Any) -> None:
        for _ in range(count):
            self._note(self.breaker.record(Sample(at=self.now, **sample), as_))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self._note(self.breaker.look(self.now))

    def _note(self, switch: Switch | None) -> None:
        if switch is not None:
            self.switches.append(switch)

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(switch.to.value, switch.reason) for switch in self.switches]


GOOD = {"drafted": 10, "accepted": 8, "tpot": 0.01}
BAD = {"drafted": 10, "accepted": 1, "tpot": 0.01}


def test_it_trips_on_acceptance_with_enough_streams_and_not_before() -> None:
    route = Route(min_acceptance=0.5)
    route.end(3, **BAD)
    route.end(50, drafted=0)  # these say nothing about acceptance
    assert route.breaker.state is State.HEALTHY
    route.end(1, **BAD)
    assert route.told == [("tripped", "acceptance")]
    assert "0.100 of the draft tokens" in route.switches[0].detail
    assert route.breaker.decide(0.0) is OFF


def test_streams_that_ended_long_ago_do_not_count() -> None:
    route = Route(min_acceptance=0.5)
    for _ in range(20):
        route.end(1, **BAD)
        route.wait(40.0)  # three in any hundred seconds
    assert route.told == []


def test_it_trips_on_tpot_against_the_measured_baseline_only() -> None:
    route = Route(max_tpot_ratio=1.5)
    route.end(50, **{**GOOD, "tpot": 9.0})
    assert route.told == []  # there is no baseline yet
    route.end(4, as_=OFF, tpot=0.02)
    route.wait(101.0)
    route.end(4, **{**GOOD, "tpot": 0.029})
    assert route.told == []
    route.end(1, **{**GOOD, "tpot": 0.031})
    assert route.told == [("tripped", "tpot")]


def test_a_baseline_grows_old() -> None:
    route = Route(max_tpot_ratio=1.5, baseline_seconds=500.0)
    route.end(4, as_=OFF, tpot=0.02)
    route.wait(501.0)
    route.end(20, **{**GOOD, "tpot": 9.0})
    assert route.told == []


def test_it_trips_on_errors() -> None:
    route = Route(max_error_rate=0.4)
    route.end(3)
    route.end(2, failed=True)
    assert route.told == []
    route.end(1, failed=True)
    assert route.told == [("tripped", "errors")]


def test_a_share_goes_without_drafts_to_keep_the_baseline() -> None:
    assert Route(max_tpot_ratio=1.5, baseline_share=0.1).breaker.decide(0.05) is OFF
    assert Route(max_tpot_ratio=1.5, baseline_share=0.1).breaker.decide(0.1) is ON
    assert Route(min_acceptance=0.5, baseline_share=0.1).breaker.decide(0.05) is ON  # no baseline is needed


def tripped(**thresholds: Any) -> Route:
    route = Route(min_acceptance=0.5, probe_share=0.25, **thresholds)
    route.end(4, **BAD)
    assert route.told == [("tripped", "acceptance")]
    route.switches.clear()
    return route


def test_it_recovers_after_a_cooldown_and_good_windows_in_a_row() -> None:
    route = tripped()
    route.end(20, **GOOD)  # opened before
    route.wait(59.0)
    assert route.told == []
    route.wait(1.0)
    assert route.told == [("probing", "cooldown")]
    assert [route.breaker.decide(draw) for draw in (0.2, 0.25)] == [ON, OFF]
    for _ in range(7):
        route.end(1, **GOOD)
        route.wait(1000.0)  # probes are few, and count however old they are
    assert route.told == [("probing", "cooldown")]
    route.end(1, **GOOD)
    assert route.told[1:] == [("healthy", "recovered")]
    assert route.breaker.decide(0.9) is ON


def test_one_bad_window_of_probes_trips_it_again() -> None:
    route = tripped()
    route.wait(60.0)
    route.end(7, **GOOD)
    route.end(3, **{**BAD, "drafted": 100})
    assert route.told[1:] == [("tripped", "acceptance")]
    route.wait(59.0)
    assert len(route.told) == 2
    route.wait(1.0)
    route.end(4, **GOOD)
    assert route.breaker.state is State.PROBING  # the good windows of the time before do not count


def test_in_shadow_it_is_not_tried_again_before_acceptance_is_good() -> None:
    route = tripped(tripped=SHADOW)
    assert route.breaker.decide(0.0) is SHADOW
    route.end(4, as_=SHADOW, **BAD)
    route.wait(60.0)
    route.end(40, as_=SHADOW, **GOOD)
    route.wait(30.0)
    assert route.told == []  # a second cool-down is under way
    route.wait(30.0)
    assert route.told == [("probing", "cooldown")]
    assert [route.breaker.decide(draw) for draw in (0.2, 0.25)] == [ON, SHADOW]


def test_thresholds_may_change_while_it_is_tripped() -> None:
    route = tripped()
    route.breaker.thresholds = Thresholds(min_acceptance=0.05, cooldown_seconds=1.0, good_windows=1, min_samples=1)
    route.wait(1.0)
    route.end(1, **BAD)
    assert route.told == [("probing", "cooldown"), ("healthy", "recovered")]


def test_the_table_has_no_way_back_to_health_but_by_probing() -> None:
    ways = [(state, event) for (state, event), to in TABLE.items() if to is State.HEALTHY]
    assert ways == [(State.PROBING, Event.HEALED)]


# --- whatever happens ---------------------------------------------------------------------------------------------

_SAMPLES = st.tuples(
    st.just("end"),
    st.sampled_from([ON, ON, ON, OFF, SHADOW]),
    st.sampled_from([GOOD, BAD, {**GOOD, "tpot": 0.5}, {"failed": True}, {}]),
    st.integers(1, 12),
)
_TIMES = st.tuples(st.just("wait"), st.sampled_from([0.0, 1.0, 20.0, 61.0, 200.0]))


@settings(max_examples=300)
@given(
    st.lists(st.one_of(_SAMPLES, _TIMES), max_size=60),
    st.sampled_from([OFF, SHADOW]),
    st.integers(1, 6),
    st.integers(1, 3),
)
def test_it_never_flaps_faster_than_it_may(moves: list[Any], mode: Speculation, samples: int, windows: int) -> None:
    route = Route(
        min_acceptance=0.5,
        max_tpot_ratio=2.0,
        max_error_rate=0.3,
        tripped=mode,
        min_samples=samples,
        good_windows=windows,
    )
    state, since, seen = State.HEALTHY, 0.0, 0
    for move in moves:
        for _ in range(move[3] if move[0] == "end" else 1):
            before = len(route.switches)
            if move[0] == "wait":
                route.wait(move[1])
            else:
                route.end(1, as_=move[1], **move[2])
                seen += move[1] is ON
            if len(route.switches) == before:
                assert route.breaker.state is state
                continue
            assert len(route.switches) == before + 1
            to = route.breaker.state
            assert to is route.switches[-1].to
            assert to in [after for (origin, _), after in TABLE.items() if origin is state]
            if to is State.TRIPPED:
                assert seen >= samples  # since the state began
            if to is State.PROBING:
                assert route.now - since >= route.breaker.thresholds.cooldown_seconds
            if to is State.HEALTHY:
                assert seen >= samples * windows
            state, since, seen = to, route.now, 0


def test_a_threshold_that_is_not_set_is_not_watched() -> None:
    assert not Thresholds().watches
    route = Route()
    route.end(100, **BAD, failed=True)
    assert route.told == []
    for name in ("min_acceptance", "max_error_rate"):
        assert Thresholds(**{name: 0.0}).watches
    with pytest.raises(ValueError, match="max_tpot_ratio"):
        Thresholds(max_tpot_ratio=float("nan"))
