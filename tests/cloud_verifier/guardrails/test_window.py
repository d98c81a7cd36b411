"""Figures over streams that have ended."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.guardrails.window import Sample, Window, acceptance_of, error_rate_of, p95


def test_old_samples_are_forgotten() -> None:
    window = Window(seconds=10.0)
    for at in (0.0, 5.0, 10.0, 15.5):
        window.add(Sample(at=at))
    assert [sample.at for sample in window] == [10.0, 15.5]
    window.forget_old(26.0)
    assert len(window) == 0


def test_memory_is_bounded() -> None:
    window = Window()
    for at in range(5000):
        window.add(Sample(at=float(at)))
    assert len(window) == 1024


def test_acceptance_counts_tokens_and_only_streams_that_had_any() -> None:
    samples = [Sample(at=0, drafted=100, accepted=10), Sample(at=0, drafted=10, accepted=10), Sample(at=0)]
    assert acceptance_of(samples, at_least=2) == pytest.approx(20 / 110)
    assert acceptance_of(samples, at_least=3) is None


def test_error_rate() -> None:
    samples = [Sample(at=0, failed=number == 0) for number in range(4)]
    assert error_rate_of(samples, at_least=4) == 0.25
    assert error_rate_of(samples, at_least=5) is None


def test_the_95th_percentile_is_by_nearest_rank() -> None:
    samples = [Sample(at=0, tpot=number / 100) for number in range(1, 101)] + [Sample(at=0)]
    assert p95(samples, at_least=100) == 0.95
    assert p95(samples, at_least=101) is None
    assert p95(samples[:1], at_least=1) == 0.01
