"""Answers as if measured, whose figures can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from draftwire.edge_client.bench.conditions import Condition, Net
from draftwire.edge_client.bench.measure import Answer, Round
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.bench.outcome import Collected, Outcome
from draftwire.edge_client.stats import Stats

AnswerMaker = Callable[..., Answer]


def plain_answer(**changes: Any) -> Answer:
    """Cloud-only: 5 tokens, the first after 100 ms, one more every 40 ms, of which 30 ms are the target's step."""
    rounds = tuple(
        Round(at=0.1 + 0.04 * index, tokens=1, accepted=0, rtt=None, queued=0.0, computed=0.03 if index else 0.06)
        for index in range(5)
    )
    stats = Stats(
        committed=5,
        rounds=5,
        target_passes=5,
        bytes_down=50,
        target_seconds=0.18,
        ttft_seconds=0.1,
        total_seconds=0.26,
    )
    answer = Answer(
        mode="cloud_only",
        variant="",
        prompt="chat-1",
        task="chat",
        repeat=0,
        seed=7,
        token_ids=(1, 2, 3, 4, 5),
        finish_reason="length",
        rounds=rounds,
        stats=stats,
        cpu_seconds=0.005,
    )
    return replace(answer, **changes)


def drafted_answer(**changes: Any) -> Answer:
    """The same text in 3 commits of 1, 3 and 1 tokens 80 ms apart: two of four draft tokens tested are accepted."""
    rounds = (
        Round(at=0.1, tokens=1, accepted=0, rtt=None, queued=0.0, computed=0.06),
        Round(at=0.14, tokens=3, accepted=2, rtt=0.05, queued=0.004, computed=0.033),
        Round(at=0.18, tokens=1, accepted=0, rtt=0.07, queued=0.002, computed=0.033),
    )
    stats = Stats(
        committed=5,
        rounds=3,
        drafted=4,
        accepted=2,
        accepted_by_position=[1, 1],
        sent_tokens=6,
        run_ahead=1,
        target_passes=3,
        bytes_up=100,
        bytes_down=40,
        draft_steps=6,
        draft_seconds=0.06,
        draft_cpu_seconds=0.05,
        ttft_seconds=0.1,
        total_seconds=0.18,
    )
    return replace(plain_answer(), mode="draftwire", rounds=rounds, stats=stats, cpu_seconds=0.06, **changes)


@pytest.fixture
def plain() -> AnswerMaker:
    """Makes cloud-only answers."""
    return plain_answer


@pytest.fixture
def drafted() -> AnswerMaker:
    """Makes answers with a draft, twice as fast."""
    return drafted_answer


@pytest.fixture
def outcome() -> Callable[..., Outcome]:
    """Makes the outcome of a condition with one prompt in both modes."""

    def make(*, rtt_ms: float = 50.0, temperature: float = 0.0, complete: bool = True) -> Outcome:
        return Outcome.of(
            Condition(net=Net(rtt_ms=rtt_ms), temperature=temperature),
            parse_modes(["draftwire"]),
            Collected(answers=[plain_answer(), drafted_answer()], rtt=0.05, complete=complete),
            {"chat-1": [True, False, True, True, False]},
        )

    return make
