"""The line of figures under an answer."""

from __future__ import annotations

import pytest
from draftwire.edge_client.commands.printing import print_events, summary
from draftwire.edge_client.events import Degraded, Event, Reconnecting, TextDelta
from draftwire.edge_client.stats import Stats


def test_a_cloud_only_answer_in_one_line() -> None:
    stats = Stats(committed=5, target_passes=5, bytes_down=60, ttft_seconds=0.266, total_seconds=0.466)
    assert summary(stats) == "5 tokens, 20.0 tokens/s, first token 266 ms, 12 bytes a token"


def test_a_drafted_answer_in_one_line() -> None:
    stats = Stats(
        committed=20,
        drafted=10,
        accepted=7,
        target_passes=13,
        draft_steps=25,
        bytes_up=300,
        bytes_down=100,
        rtt_seconds=[0.070, 0.071, 0.090],
        ttft_seconds=0.1,
        total_seconds=0.5,
    )
    assert summary(stats) == (
        "20 tokens, 47.5 tokens/s, first token 100 ms, round trip 71 ms, acceptance 0.70, "
        "0.65 target passes a token (1 without a draft), 20 bytes a token"
    )


def test_an_answer_without_a_token() -> None:
    assert summary(Stats()) == "0 tokens, 0.0 tokens/s, 0 bytes a token"


def test_an_answer_that_was_interrupted() -> None:
    stats = Stats(committed=3, unverified=2, reconnects=1, ttft_seconds=0.5, total_seconds=2.5)
    assert summary(stats) == (
        "5 tokens, 2 of them the draft's alone, 2.0 tokens/s, connected 2 times, first token 500 ms, 0 bytes a token"
    )


def test_what_went_wrong_is_told_beside_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[Event] = [
        TextDelta(text="ab", token_ids=(1, 2), guessed=False),
        Reconnecting(reason="the connection broke off"),
        Degraded(reason="no verifier", mode="draft-only"),
        Degraded(reason="no bundle"),
        TextDelta(text="c", token_ids=(3,), guessed=True, verified=False),
    ]
    assert print_events(events, show_guesses=False) is None
    printed = capsys.readouterr()
    assert printed.out == "abc\n"
    assert printed.err.splitlines() == [
        "draftwire: trying to go on: the connection broke off",
        "draftwire: draft-only: no verifier",
        "draftwire: cloud-only: no bundle",
    ]
