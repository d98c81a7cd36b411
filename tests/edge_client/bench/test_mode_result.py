from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from draftwire.edge_client.bench.measure import Answer
from draftwire.edge_client.bench.mode_result import ModeResult, ratios_by_prompt

Maker = Callable[..., Answer]


def slower(answer: Answer, times: float) -> Answer:
    """The same answer, its tokens so many times as long apart."""
    stats = replace(answer.stats)
    stats.total_seconds = 0.1 + (stats.total_seconds - 0.1) * times
    return replace(answer, stats=stats)


def test_figures_of_one_answer(plain: Maker, drafted: Maker) -> None:
    found = ModeResult.of([drafted()], [plain()], predicted=2.5)
    assert (found.mode, found.answers, found.tokens) == ("draftwire", 1, 5)
    assert found.tokens_per_second == pytest.approx(4 / 0.08)
    assert found.ratio.middle == pytest.approx(2.0)
    assert found.ttft_ms == pytest.approx(100)
    assert found.tpot_ms == pytest.approx(20)
    assert found.itl_ms == pytest.approx({"p50": 40, "p95": 40, "p99": 40})
    assert found.acceptance_rate == 0.5
    assert found.accepted_by_position == [0.5, 0.5]  # of three rounds one had no draft, and one of two accepted both
    assert found.target_passes_per_token == pytest.approx(0.6)
    assert (found.bytes_up_per_token, found.bytes_down_per_token) == (20, 8)
    assert found.cpu_ms_per_token == pytest.approx(10)
    assert found.process_cpu_ms_per_token == pytest.approx(12)
    assert found.of_predicted == pytest.approx(0.8)


def test_a_rounds_parts_leave_the_prompt_out(plain: Maker, drafted: Maker) -> None:
    parts = ModeResult.of([drafted()], [plain()]).round
    assert parts.lasted == pytest.approx(40)
    assert parts.draft == pytest.approx(20)
    assert parts.wire == pytest.approx(60)
    assert parts.queue == pytest.approx(3)
    assert parts.target == pytest.approx(33)


def test_cloud_only_has_no_draft_to_speak_of(plain: Maker) -> None:
    found = ModeResult.of([plain()], [plain()])
    assert found.ratio.middle == 1
    assert found.acceptance_rate is None
    assert found.accepted_by_position == []
    assert found.round.wire is None
    assert found.of_predicted is None


def test_the_ratio_is_the_geometric_mean_over_prompts(plain: Maker, drafted: Maker) -> None:
    prompts = ["chat-1", "code-1", "list-1"]
    alone = [plain(prompt=prompt) for prompt in prompts]
    answers = [slower(drafted(prompt=prompt), times) for prompt, times in zip(prompts, (1, 2, 4), strict=True)]
    ratio = ModeResult.of(answers, alone).ratio
    assert ratio.middle == pytest.approx((2 * 1 * 0.5) ** (1 / 3))
    assert ratio.count == 3
    assert (ratio.least, ratio.most) == pytest.approx((0.5, 2.0))
    assert (ratio.low_quartile, ratio.high_quartile) == pytest.approx((0.75, 1.5))


def test_repeats_of_a_prompt_count_as_one(plain: Maker, drafted: Maker) -> None:
    alone = [plain(repeat=0), slower(plain(repeat=1), 4)]
    answers = [drafted(repeat=0), drafted(repeat=1)]
    assert ratios_by_prompt(answers, alone) == pytest.approx({"chat-1": 4.0})


def test_speed_is_the_harmonic_mean(plain: Maker) -> None:
    alone = [plain(), slower(plain(prompt="code-1"), 3)]
    assert ModeResult.of(alone, alone).tokens_per_second == pytest.approx(2 / (0.04 + 0.12))
