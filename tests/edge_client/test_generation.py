from __future__ import annotations

from typing import Any

import pytest
from draftwire.edge_client.generation import Generation
from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.errors import IllegalMessageError
from draftwire.protocol.messages import Commit, Draft
from draftwire.protocol.sparse_q import SparseQ

PROMPT = (3, 4, 5)


def generation_of(**options: Any) -> Generation:
    defaults: dict[str, Any] = {"prompt_ids": PROMPT, "max_tokens": 20, "stop_ids": (), "most_ahead": 4}
    return Generation(stream=1, **{**defaults, **options})


def add(generation: Generation, *tokens: int) -> None:
    for token in tokens:
        assert generation.add(generation.path, Proposal(token), 10 + token)


def commit(generation: Generation, accepted: int, token: int | None, *, path: int = 1) -> Any:
    return generation.apply(Commit(stream=1, path=path, accepted=accepted, token=token))


def frame_of(generation: Generation) -> Draft:
    frame = generation.take_frame(sent_at=77, continues=generation.room > 0)
    assert frame is not None
    return frame


# --- growing the path -------------------------------------------------------------------------------------------------


def test_proposals_follow_the_sequence() -> None:
    generation = generation_of()
    assert generation.context() == [3, 4, 5]
    add(generation, 6, 7)
    assert generation.context() == [3, 4, 5, 6, 7]
    commit(generation, 0, 6, path=0)
    assert generation.sequence == [3, 4, 5, 6]
    assert generation.context() == [3, 4, 5, 6, 7]


def test_the_path_grows_to_the_look_ahead() -> None:
    generation = generation_of(most_ahead=2)
    assert generation.room
    add(generation, 6, 7)
    assert not generation.room
    frame_of(generation)
    commit(generation, 1, 7)
    assert generation.room


def test_no_look_ahead_no_proposals() -> None:
    assert not generation_of(most_ahead=0).room


@pytest.mark.parametrize(("max_tokens", "wanted"), [(1, 0), (2, 1), (3, 2), (20, 8)])
def test_the_last_token_needs_no_proposal(max_tokens: int, wanted: int) -> None:
    generation, count = generation_of(max_tokens=max_tokens, most_ahead=8), 0
    while generation.room:
        add(generation, 6)
        count += 1
    assert count == wanted


def test_nothing_follows_a_stop_id() -> None:
    generation = generation_of(stop_ids=(9,))
    add(generation, 6)
    assert generation.room
    add(generation, 9)
    assert not generation.room
    assert not frame_of(generation).continues
    commit(generation, 0, 0)  # the verifier saw it otherwise
    assert generation.room


def test_a_proposal_for_a_path_left_meanwhile_is_refused() -> None:
    generation = generation_of()
    path = generation.path
    add(generation, 6)
    frame_of(generation)
    commit(generation, 0, 0)
    assert not generation.add(path, Proposal(7), 0)
    assert generation.context() == [3, 4, 5, 0]


# --- frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_holds_what_is_new() -> None:
    generation = generation_of()
    assert generation.take_frame(sent_at=0, continues=True) is None
    add(generation, 6, 7)
    assert frame_of(generation) == Draft(
        stream=1, path=1, start=3, token_ids=(6, 7), confidences=(16, 17), sent_at=77, continues=True
    )
    assert generation.take_frame(sent_at=0, continues=True) is None
    add(generation, 8, 9)
    frame = frame_of(generation)
    assert (frame.start, frame.token_ids, frame.confidences, frame.continues) == (5, (8, 9), (18, 19), False)


def test_a_frame_of_rejection_mode_carries_q_instead_of_confidences() -> None:
    generation = generation_of(by_rejection=True)
    q = SparseQ((6, 8), (255, 3))
    assert generation.add(generation.path, Proposal(8, q), 200)
    frame = frame_of(generation)
    assert (frame.confidences, frame.sparse_q) == ((), (q,))


def test_unsent_proposals_that_commits_overtake_are_never_sent() -> None:
    """Nothing of the path was sent, so the verifier need not hear what it has committed by itself."""
    generation = generation_of()
    add(generation, 6, 7, 8)
    committed = commit(generation, 0, 6, path=0)
    assert committed.guessed == (True,)
    frame = frame_of(generation)
    assert (frame.path, frame.start, frame.token_ids) == (1, 4, (7, 8))


def test_a_path_sent_in_part_goes_on_where_it_was() -> None:
    """The verifier expects the path without gaps, even where commits have passed what was not sent yet."""
    generation = generation_of()
    add(generation, 6)
    frame_of(generation)
    add(generation, 7, 8)
    commit(generation, 1, 7)  # the bonus token is the proposal not yet sent
    frame = frame_of(generation)
    assert (frame.path, frame.start, frame.token_ids) == (1, 4, (7, 8))


def test_nothing_is_sent_of_a_path_that_is_all_committed() -> None:
    generation = generation_of()
    add(generation, 6)
    frame_of(generation)
    add(generation, 7)
    commit(generation, 1, 7)
    assert generation.path.id == 1
    assert generation.take_frame(sent_at=0, continues=True) is None
    add(generation, 8)
    assert (frame_of(generation).start, generation.paths) == (4, 1)


# --- commits ----------------------------------------------------------------------------------------------------------


def test_all_accepted_and_a_bonus_that_the_path_had_guessed() -> None:
    generation = generation_of()
    add(generation, 6, 7, 8)
    frame_of(generation)
    committed = commit(generation, 2, 8)
    assert (committed.token_ids, committed.guessed) == ((6, 7, 8), (True, True, True))
    assert generation.path.id == 1
    assert generation.answer == (6, 7, 8)


def test_divergence_starts_a_new_path_at_the_committed_end() -> None:
    generation = generation_of()
    add(generation, 6, 7, 8)
    frame_of(generation)
    committed = commit(generation, 1, 0)
    assert (committed.token_ids, committed.guessed) == ((6, 0), (True, False))
    assert (generation.path.id, generation.path.start, generation.paths) == (2, 5, 1)
    assert generation.context() == [3, 4, 5, 6, 0]
    add(generation, 9)
    frame = frame_of(generation)
    assert (frame.path, frame.start, frame.token_ids) == (2, 5, (9,))


def test_a_path_outrun_by_agreeing_commits_is_left() -> None:
    generation = generation_of()
    add(generation, 6)
    frame_of(generation)
    commit(generation, 1, 7)
    assert (generation.path.id, generation.path.start) == (2, 5)


def test_run_ahead_tokens_that_agree_keep_the_path() -> None:
    generation = generation_of()
    add(generation, 6, 7, 8, 9)
    frame_of(generation)
    for token in (6, 7):
        committed = commit(generation, 0, token, path=0)
        assert committed.guessed == (True,)
    assert generation.path.id == 1
    assert commit(generation, 2, 1).token_ids == (8, 9, 1)


def test_an_unheard_of_path_is_moved_instead_of_numbered() -> None:
    generation = generation_of()
    add(generation, 6)
    commit(generation, 0, 0, path=0)
    commit(generation, 0, 1, path=0)
    assert (generation.path.id, generation.path.start, generation.paths) == (1, 5, 0)


def test_a_withheld_bonus() -> None:
    generation = generation_of()
    add(generation, 6, 7, 8)
    frame_of(generation)
    committed = commit(generation, 2, None)
    assert committed.token_ids == (6, 7)
    assert generation.path.id == 1
    assert generation.context() == [3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(("accepted", "path"), [(3, 1), (1, 2), (1, 7)])
def test_a_verifier_that_accepts_what_was_never_sent_breaks_the_protocol(accepted: int, path: int) -> None:
    generation = generation_of()
    add(generation, 6, 7)
    frame_of(generation)
    add(generation, 8)
    with pytest.raises(IllegalMessageError, match="never sent") as caught:
        commit(generation, accepted, 0, path=path)
    assert caught.value.stream == 1
    assert generation.answer == ()


def test_a_verifier_that_accepts_tokens_of_a_path_left_breaks_the_protocol() -> None:
    generation = generation_of()
    add(generation, 6, 7)
    frame_of(generation)
    commit(generation, 0, 0)
    with pytest.raises(IllegalMessageError, match="path 1"):
        commit(generation, 1, 0, path=1)


def test_a_verifier_that_goes_on_beyond_the_end_is_found_out() -> None:
    too_many = Generation(stream=1, prompt_ids=[1, 2], max_tokens=2, stop_ids=[9], most_ahead=4)
    too_many.apply(Commit(stream=1, path=0, accepted=0, token=3))
    too_many.apply(Commit(stream=1, path=0, accepted=0, token=4))
    with pytest.raises(IllegalMessageError, match="beyond the end"):
        too_many.apply(Commit(stream=1, path=0, accepted=0, token=5))
    after_stop = Generation(stream=1, prompt_ids=[1, 9], max_tokens=9, stop_ids=[9], most_ahead=4)
    after_stop.apply(Commit(stream=1, path=0, accepted=0, token=9))
    with pytest.raises(IllegalMessageError, match="beyond the end"):
        after_stop.apply(Commit(stream=1, path=0, accepted=0, token=3))


# --- what the controller is told --------------------------------------------------------------------------------------


def test_the_outlook_shows_what_lies_beyond_the_prefix() -> None:
    generation = generation_of()
    add(generation, 6, 7)
    frame_of(generation)
    add(generation, 8)
    outlook = generation.outlook(5.0)
    assert (outlook.now, list(outlook.ahead), outlook.unsent, outlook.room) == (5.0, [16, 17, 18], 1, 1)
    commit(generation, 1, 7)
    outlook = generation.outlook(6.0)
    assert (list(outlook.ahead), outlook.unsent, outlook.room) == ([18], 1, 3)
    commit(generation, 0, 8, path=1)  # the verifier ran ahead of what was never sent
    outlook = generation.outlook(7.0)
    assert (list(outlook.ahead), outlook.unsent) == ([], 0)


def test_a_commit_tells_which_tokens_were_put_to_the_test() -> None:
    generation = generation_of()
    add(generation, 6, 7, 8, 9)
    frame_of(generation)
    first = commit(generation, 1, 7)
    assert (first.tested, first.depth, first.kept) == (((16, True), (17, True)), 0, True)
    second = commit(generation, 0, 1)
    assert (second.tested, second.depth, second.kept) == (((18, False),), 2, False)
    third = commit(generation, 0, 2)  # nothing was proposed there
    assert (third.tested, third.kept) == ((), False)


def test_a_commit_tells_how_many_draft_tokens_its_step_had() -> None:
    """As far as echoes prove: a frame that was echoed had arrived, and all before it."""
    generation = generation_of()
    add(generation, 6, 7)
    generation.take_frame(sent_at=1, continues=True)
    add(generation, 8)
    generation.take_frame(sent_at=2, continues=True)

    def block(accepted: int, token: int, *, echo: int | None, path: int = 1) -> int | None:
        commit_ = Commit(stream=1, path=path, accepted=accepted, token=token, echo=echo)
        return generation.apply(commit_).block

    assert block(0, 6, echo=None, path=0) == 0  # the verifier had heard of no path
    assert block(0, 7, echo=1) == 1  # 7, as 6 was committed already
    assert block(0, 8, echo=2) == 1
    assert block(0, 9, echo=None) == 0
    add(generation, 3)
    generation.take_frame(sent_at=3, continues=True)
    assert block(0, 1, echo=77) == 0  # an echo from the path before


def test_a_promise_of_more_can_be_taken_back_by_an_empty_frame() -> None:
    generation = generation_of()
    add(generation, 6)
    assert generation.take_frame(sent_at=0, continues=False) is not None
    assert generation.take_frame(sent_at=0, continues=False) is None  # nothing was promised
    add(generation, 7)
    assert generation.take_frame(sent_at=0, continues=True) is not None
    frame = generation.take_frame(sent_at=9, continues=False)
    assert frame == Draft(stream=1, path=1, start=5, token_ids=(), sent_at=9, continues=False)
    assert generation.take_frame(sent_at=0, continues=False) is None


def test_rest_is_said_once_and_ended_by_the_next_token() -> None:
    generation = generation_of()
    rest = generation.take_rest(sent_at=5)
    assert rest == Draft(stream=1, path=1, start=3, token_ids=(), sent_at=5)
    assert generation.take_rest(sent_at=6) is None
    commit(generation, 0, 6, path=1)
    assert (generation.path.id, generation.path.start) == (2, 4)  # the verifier has heard of path 1
    add(generation, 7)
    assert generation.take_rest(sent_at=7) is None  # something is to be sent
    assert frame_of(generation).token_ids == (7,)
    rest = generation.take_rest(sent_at=8)
    assert rest is not None
    assert (rest.path, rest.start, rest.token_ids, rest.continues) == (2, 5, (), False)


def test_rest_by_rejection_has_the_form_of_its_mode() -> None:
    rest = generation_of(by_rejection=True).take_rest(sent_at=0)
    assert rest is not None
    assert rest.sparse_q == ()
