from __future__ import annotations

import pytest
from draftwire.cloud_verifier.engine.rhythm import Due, Rhythm, Typical


def typical(*values: float) -> Typical:
    estimate = Typical()
    for value in values:
        estimate.add(value)
    return estimate


# --- one duration ---------------------------------------------------------------------------------------------------


def test_nothing_is_known_at_first() -> None:
    assert Typical().value is None


def test_a_single_duration_may_be_off_by_half() -> None:
    estimate = typical(0.04)
    assert (estimate.value, estimate.spread) == (0.04, 0.02)


@pytest.mark.parametrize("late", [0.02, 0.4])
def test_a_late_one_changes_nothing(late: float) -> None:
    estimate = typical(*[0.010, 0.011, 0.012] * 3, 0.011 + late)
    assert estimate.value == pytest.approx(0.011, abs=0.001)
    assert estimate.spread < 0.003


def test_a_lasting_change_is_followed_after_a_few() -> None:
    estimate = typical(*[0.01] * 50, *[0.2] * 5)
    assert estimate.value == 0.2
    for _ in range(5):
        estimate.add(0.01)
    assert estimate.value == 0.01


def test_jitter_shows_in_the_spread() -> None:
    assert typical(*[0.01, 0.05, 0.09] * 3).spread > 0.04


# --- the client's drafts --------------------------------------------------------------------------------------------


def test_the_start_of_a_path_says_which_commit_it_answers() -> None:
    rhythm = Rhythm()
    rhythm.committed(11, at=1.0)
    rhythm.committed(12, at=1.03)  # run ahead meanwhile
    rhythm.path_began(11, 1, at=1.05)
    assert rhythm.reply.value == pytest.approx(0.05)
    rhythm.path_began(10, 1, at=2.0)  # answers nothing that was seen here
    assert rhythm.reply.value == pytest.approx(0.05)


def test_each_further_token_takes_its_share_of_the_time() -> None:
    rhythm = Rhythm()
    rhythm.path_began(10, 1, at=1.0)
    rhythm.path_grew(2, at=1.02, announced=True)
    assert rhythm.token.value == pytest.approx(0.01)
    rhythm.path_grew(1, at=1.03, announced=True)
    rhythm.committed(13, at=2.0)
    rhythm.path_began(13, 3, at=2.05)  # the first of three came 20 ms before the last
    assert rhythm.reply.value == pytest.approx(0.03)


def test_a_pause_that_was_announced_is_no_token_gap() -> None:
    rhythm = Rhythm()
    rhythm.path_began(10, 1, at=1.0)
    rhythm.path_grew(1, at=1.5, announced=False)
    assert rhythm.token.value is None
    assert rhythm.next_on_path(1) is None
    rhythm.path_grew(1, at=1.51, announced=True)
    assert rhythm.token.value == pytest.approx(0.01)


def test_the_next_token_of_a_path_follows_the_last_frame() -> None:
    rhythm = Rhythm()
    rhythm.path_began(10, 1, at=1.0)
    for count in range(1, 5):
        rhythm.path_grew(1, at=1.0 + count / 100, announced=True)
    due = rhythm.next_on_path(3)
    assert due is not None
    assert due.at == pytest.approx(1.07)
    assert due.tokens == 3


def test_an_answer_is_due_a_reply_gap_after_the_commit_that_asks_for_it() -> None:
    rhythm = Rhythm()
    assert rhythm.next_in_answer(10, 12) is None
    rhythm.committed(10, at=0.0)
    rhythm.path_began(10, 1, at=0.05)
    rhythm.path_grew(1, at=0.06, announced=True)
    for length, at in ((12, 1.0), (13, 1.03)):
        rhythm.committed(length, at=at)
    due = rhythm.next_in_answer(11, 12)  # the path differed at position 11, which the first of the two told
    assert due is not None
    assert (due.at, due.tokens) == (pytest.approx(1.05), 1)
    due = rhythm.next_in_answer(11, 13)  # a token was run ahead since: the new path has to get past it
    assert due is not None
    assert (due.at, due.tokens) == (pytest.approx(1.06), 2)
    assert rhythm.next_in_answer(13, 13) is None


def test_what_is_due_is_overdue_after_two_deviations() -> None:
    assert Due(1.0, 0.01, 1).until == pytest.approx(1.022)
