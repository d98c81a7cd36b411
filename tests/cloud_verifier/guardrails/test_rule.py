"""What operators set, and who gets which part of a share."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.guardrails.rule import OFF, ON, SHADOW, Rule, draw_of, strictest
from draftwire.protocol.errors import InvalidParameterError
from hypothesis import given
from hypothesis import strategies as st


def test_plain_rules_are_for_every_stream() -> None:
    for draw in (0.0, 0.5, 0.999999):
        assert [rule.decide(draw) for rule in (ON, OFF, SHADOW)] == [
            Speculation.ON,
            Speculation.OFF,
            Speculation.SHADOW,
        ]


def test_a_canary_is_on_for_its_share_and_off_for_the_rest() -> None:
    canary = Rule(share=0.1)
    decided = [canary.decide(draw_of("request", stream, 7)) for stream in range(1, 4001)]
    assert set(decided) == {Speculation.ON, Speculation.OFF}
    assert 300 < decided.count(Speculation.ON) < 500


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(InvalidParameterError, match="canary"):
        Rule(share=share)


def test_the_draw_is_stable_for_ever() -> None:
    """Replicas and later releases must agree on it."""
    assert draw_of("r1", 1, 42) == pytest.approx(0.22334508457578325, abs=1e-12)
    assert draw_of("r1", 1, 42, purpose="breaker") != draw_of("r1", 1, 42)
    assert len({draw_of("r1", 1, 42), draw_of("r2", 1, 42), draw_of("r1", 2, 42), draw_of("r1", 1, 43)}) == 4


@given(st.text(max_size=20), st.integers(1, 1 << 20), st.integers(0, (1 << 64) - 1))
def test_a_stream_in_a_share_is_in_every_larger_one(request: str, stream: int, seed: int) -> None:
    draw = draw_of(request, stream, seed)
    assert 0.0 <= draw < 1.0
    small, large = Rule(share=0.2).decide(draw), Rule(share=0.6).decide(draw)
    assert strictest([small, large]) is small


def test_the_strictest_wins() -> None:
    on, off, shadow = Speculation.ON, Speculation.OFF, Speculation.SHADOW
    assert strictest([]) is on
    assert strictest([on, shadow]) is strictest([shadow, on]) is shadow
    assert strictest([on, off, shadow]) is strictest([shadow, off]) is off
