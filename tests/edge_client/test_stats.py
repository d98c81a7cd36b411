from __future__ import annotations

import json

import pytest
from draftwire.edge_client.stats import Stats


def test_nothing_yet_divides_by_nothing() -> None:
    stats = Stats()
    values = stats.to_dict()
    for name in (
        "acceptance_rate",
        "target_passes_per_token",
        "mean_acceptance_length",
        "tokens_per_second",
        "bytes_per_token",
        "draft_ms_per_token",
        "cpu_seconds_per_token",
    ):
        assert values[name] == 0.0
    assert values["median_rtt"] is None


def test_ratios_follow_from_counters() -> None:
    stats = Stats(
        committed=11,
        drafted=20,
        accepted=5,
        target_passes=4,
        bytes_up=300,
        bytes_down=250,
        draft_steps=25,
        draft_seconds=0.5,
        draft_cpu_seconds=0.22,
        rtt_seconds=[0.5, 0.1, 0.2],
        ttft_seconds=1.0,
        total_seconds=3.0,
    )
    assert stats.acceptance_rate == 0.25
    assert stats.target_passes_per_token == pytest.approx(4 / 11)
    assert stats.mean_acceptance_length == pytest.approx(11 / 4)
    assert stats.tokens_per_second == pytest.approx(10 / 2.0)
    assert stats.bytes_per_token == pytest.approx(50)
    assert stats.draft_ms_per_token == pytest.approx(20)
    assert stats.cpu_seconds_per_token == pytest.approx(0.02)
    assert stats.median_rtt == 0.2


def test_acceptance_by_position() -> None:
    stats = Stats()
    for accepted in (3, 0, 1, 3, 2):
        stats.count_accepted(accepted)
    assert stats.accepted == 9
    assert stats.accepted_by_position == [4, 3, 2]
    assert sum(stats.accepted_by_position) == stats.accepted


def test_one_token_has_no_speed() -> None:
    assert Stats(committed=1, ttft_seconds=1.0, total_seconds=1.0).tokens_per_second == 0.0


def test_the_drafts_own_tokens_count_for_the_speed_of_delivery_alone() -> None:
    stats = Stats(committed=1, unverified=4, target_passes=1, bytes_down=20, ttft_seconds=1.0, total_seconds=3.0)
    assert stats.tokens_per_second == pytest.approx(2.0)
    assert stats.target_passes_per_token == 1.0
    assert stats.bytes_per_token == 20.0


def test_the_dictionary_holds_every_counter_and_ratio_and_is_json() -> None:
    values = json.loads(json.dumps(Stats(rtt_seconds=[0.1], accepted_by_position=[2, 1]).to_dict()))
    ratios = {name for name, value in vars(Stats).items() if isinstance(value, property)}
    assert set(values) == set(Stats.__dataclass_fields__) | ratios
    assert values["accepted_by_position"] == [2, 1]
    assert values["median_rtt"] == 0.1


def test_generations_do_not_share_their_lists() -> None:
    one, other = Stats(), Stats()
    one.count_accepted(2)
    one.rtt_seconds.append(1.0)
    assert other.accepted_by_position == []
    assert other.rtt_seconds == []


@pytest.mark.parametrize(
    ("rounds", "total", "positions"), [([2, 0], 3, [2, 1]), ([1, 2], 4, [2, 1, 1]), ([2], 2, [1, 1])]
)
def test_a_draft_token_that_ends_the_answer_is_counted(rounds: list[int], total: int, positions: list[int]) -> None:
    stats = Stats()
    for accepted in rounds:
        stats.count_accepted(accepted)
    stats.count_last(total)
    assert stats.accepted == total
    assert stats.accepted_by_position == positions
    assert sum(stats.accepted_by_position) == total
