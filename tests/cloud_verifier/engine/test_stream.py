from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.clock import CLOCK_UNIT
from draftwire.protocol.errors import FrameTooLargeError, IllegalMessageError
from draftwire.protocol.messages import Draft, EndReason, Message, Open
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ

PROMPT = (3, 4, 5)
REJECTION = SamplingParams(temperature=1.0, mode="rejection")


class Nobody(Owner):
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def stream_of(**options: Any) -> VerifierStream:
    defaults: dict[str, Any] = {"max_tokens": 20, "seed": 1, "params": SamplingParams(), "drafting": True}
    request = Open(stream=1, token_ids=PROMPT, prompt_length=len(PROMPT), **{**defaults, **options})
    return VerifierStream(slot=1, owner=Nobody(), request=request, sequence=list(PROMPT), cached=0, opened_at=0.0)


def draft_of(start: int, *tokens: int, path: int = 1, **options: Any) -> Draft:
    defaults: dict[str, Any] = {"sent_at": 7, "confidences": (0,) * len(tokens)}
    return Draft(stream=1, path=path, start=start, token_ids=tokens, **{**defaults, **options})


def take(stream: VerifierStream, draft: Draft, *, now: float = 1.0, max_backlog: int = 16) -> None:
    stream.take_draft(draft, now=now, max_backlog=max_backlog)


def commit(stream: VerifierStream, *tokens: int, accepted: int = 0) -> Any:
    """Commit as the engine does after a step."""
    proposals = stream.work(max_block=16, prefill_chunk=64).proposals
    for token in tokens:
        stream.history.append(token)
    frame = stream.commit(Verdict(tokens, accepted), proposals, started=2.0, ended=3.0)
    assert stream.cached < len(stream.sequence)
    return frame


def proposed(stream: VerifierStream) -> list[int]:
    return [proposal.token for proposal in stream.proposed()]


# --- drafts ---------------------------------------------------------------------------------------------------------


def test_frames_of_a_path_add_up() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7))
    take(stream, draft_of(5, 8))
    assert proposed(stream) == [6, 7, 8]


def test_a_late_draft_that_agrees_is_kept() -> None:
    stream = stream_of()
    commit(stream, 6)
    commit(stream, 7)
    take(stream, draft_of(3, 6, 7, 8, 9))
    assert proposed(stream) == [8, 9]


def test_a_late_draft_that_disagrees_dies_silently_and_so_does_the_rest_of_its_path() -> None:
    stream = stream_of()
    commit(stream, 6)
    take(stream, draft_of(3, 0, 7))
    assert proposed(stream) == []
    take(stream, draft_of(5, 8))
    assert proposed(stream) == []
    take(stream, draft_of(4, 9, path=2))
    assert proposed(stream) == [9]


def test_a_path_dies_when_a_commit_disagrees() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, 8))
    commit(stream, 6, 0, accepted=1)
    assert proposed(stream) == []
    take(stream, draft_of(6, 9))
    assert proposed(stream) == []


def test_a_dead_path_takes_no_memory_and_knows_its_end() -> None:
    stream = stream_of()
    commit(stream, 6)
    for start in range(3, 3000):
        take(stream, draft_of(start, 0), max_backlog=4)  # nor does a backlog limit apply to what is dropped
    assert stream.path is not None
    assert stream.path.proposals == []
    with pytest.raises(IllegalMessageError, match="ends at 3000"):
        take(stream, draft_of(2999, 0))


def test_a_stale_path_is_ignored() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, path=5, sent_at=50))
    take(stream, draft_of(3, 9, 9, 9, path=4, sent_at=60))
    take(stream, draft_of(900, 9, path=1))
    assert proposed(stream) == [6]
    assert commit(stream, 6, accepted=1).echo == 50


def test_a_newer_path_replaces_the_older() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, path=1))
    take(stream, draft_of(3, 8, path=9))
    assert proposed(stream) == [8]


def test_a_path_may_begin_inside_what_is_committed() -> None:
    stream = stream_of()
    take(stream, draft_of(1, 4, 5, 6))
    assert proposed(stream) == [6]
    take(stream, draft_of(1, 0, 5, 6, path=2))
    assert proposed(stream) == []


@pytest.mark.parametrize("start", [5, 3, 100])
def test_a_gap_or_an_overlap_inside_a_path_is_an_error(start: int) -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6))
    with pytest.raises(IllegalMessageError, match="path 1 ends at 4") as caught:
        take(stream, draft_of(start, 7))
    assert caught.value.stream == 1


def test_a_new_path_beyond_the_committed_end_is_an_error() -> None:
    stream = stream_of()
    with pytest.raises(IllegalMessageError, match="beyond the committed 3 tokens") as caught:
        take(stream, draft_of(4, 7))
    assert caught.value.stream == 1


def test_the_backlog_counts_from_the_committed_end() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, 8), max_backlog=3)
    with pytest.raises(FrameTooLargeError, match="more than 3 draft tokens") as caught:
        take(stream, draft_of(6, 9), max_backlog=3)
    assert caught.value.stream == 1
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, 8), max_backlog=3)
    commit(stream, 6, accepted=1)
    take(stream, draft_of(6, 9), max_backlog=3)
    assert proposed(stream) == [7, 8, 9]


# --- what is learned of them ----------------------------------------------------------------------------------------


def test_when_the_next_draft_is_due() -> None:
    stream = stream_of()
    assert stream.due(0.0) is None
    take(stream, draft_of(3, 6, continues=True), now=1.00)
    take(stream, draft_of(4, 7, continues=True), now=1.01)
    due = stream.due(1.01)
    assert due is not None
    assert (due.at, due.tokens) == (pytest.approx(1.02), 1)
    stream.continues = False
    assert stream.due(1.01) is None  # nothing more will come before a commit is heard


def test_a_path_that_was_overtaken_may_catch_up_or_be_answered_by_a_new_one() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, continues=True), now=2.98)
    take(stream, draft_of(4, 7, continues=True), now=2.99)
    commit(stream, 6, 7, 8, accepted=2)  # ended at 3.0, with a bonus at position 5
    due = stream.due(3.0)
    assert due is not None
    assert (due.at, due.tokens) == (pytest.approx(3.01), 2)  # positions 5 and 6
    stream.rhythm.reply.add(0.05)
    late = stream.due(3.04)
    assert late is not None
    assert (late.at, late.tokens) == (pytest.approx(3.05), 1)


def test_a_path_that_a_late_frame_shows_dead_is_answered_from_the_commit_that_killed_it() -> None:
    stream = stream_of()
    stream.rhythm.reply.add(0.05)
    commit(stream, 6)  # at 3.0: position 3
    stream.commit(Verdict((7,), 0), [], started=3.0, ended=3.03)
    take(stream, draft_of(3, 9, 7, continues=True), now=3.04)
    due = stream.due(3.04)
    assert due is not None
    assert (due.at, due.tokens) == (pytest.approx(3.05), 2)


def test_a_usable_draft_makes_up_for_those_that_were_missed() -> None:
    stream = stream_of()
    stream.misses, stream.held = 3, True
    commit(stream, 6)
    take(stream, draft_of(3, 0, continues=True))  # disagrees
    assert (stream.misses, stream.held) == (3, True)
    take(stream, draft_of(4, 7, path=2))
    assert (stream.misses, stream.held) == (0, False)


@pytest.mark.parametrize("late", [False, True])
def test_every_tested_proposal_counts(late: bool) -> None:
    stream = stream_of()
    draft = draft_of(3, 6, 7, 0, 9, confidences=(1, 10, 30, 200))
    before = [stream.odds.survival([byte])[0] for byte in draft.confidences]
    if late:
        for token in (6, 7, 8):
            commit(stream, token)
        take(stream, draft)
    else:
        take(stream, draft)
        commit(stream, 6, 7, 8, accepted=2)
    after = [stream.odds.survival([byte])[0] for byte in draft.confidences]
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert after[2] < before[2]
    assert after[3] == before[3]  # nobody knows what it was worth


def test_a_bonus_tests_a_proposal_that_was_left_out() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, 9, confidences=(0, 0, 100)))
    before = stream.odds.survival([100])[0]
    stream.commit(Verdict((6, 7, 8), 2), stream.proposed()[:2], started=1.0, ended=2.0)
    assert stream.odds.survival([100])[0] < before
    assert proposed(stream) == []


def test_survival_is_of_what_is_proposed() -> None:
    stream = stream_of()
    take(stream, draft_of(2, 5, 6, 7, confidences=(250, 0, 0)))
    assert [round(chance, 1) for chance in stream.survival()] == [1.0, 0.9]
    take(stream, draft_of(5, 8, confidences=(250,)))
    assert len(stream.survival()) == 3
    assert stream.survival()[-1] < 0.5
    commit(stream, 0)
    assert stream.survival() == []


def test_by_rejection_only_what_was_verified_was_tested() -> None:
    """The target's own token says little about a proposal that it was not drawn against."""
    q = SparseQ((6, 7), (1, 1))
    late, verified = stream_of(params=REJECTION), stream_of(params=REJECTION)
    for stream in (late, verified):
        assert stream.odds.hit == pytest.approx(0.7)
    commit(late, 6)
    take(late, draft_of(3, 7, confidences=(), sparse_q=(q,)))
    assert late.odds.hit == pytest.approx(0.7)
    take(verified, draft_of(3, 7, confidences=(), sparse_q=(q,)))
    half = verified.odds.survival([16])[0]
    assert verified.survival() == [half]
    commit(verified, 6)
    assert verified.odds.hit < 0.7
    assert verified.odds.survival([16])[0] < half


# --- work -----------------------------------------------------------------------------------------------------------


def test_a_long_prompt_is_read_in_chunks() -> None:
    stream = stream_of()
    work = stream.work(max_block=8, prefill_chunk=2)
    assert work.prefill
    assert (work.block.start, list(work.block.tokens), work.block.rows) == (0, [3, 4], 1)
    stream.cached = 2
    assert not stream.prefilling
    work = stream.work(max_block=8, prefill_chunk=2)
    assert not work.prefill
    assert (work.block.start, list(work.block.tokens), work.block.rows) == (2, [5], 1)


def test_the_last_of_the_prompt_takes_proposals_along() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7))
    work = stream.work(max_block=8, prefill_chunk=3)
    assert (list(work.block.tokens), work.block.rows, work.prefill) == ([3, 4, 5, 6, 7], 3, False)


@pytest.mark.parametrize(("max_block", "max_tokens", "expected"), [(8, 20, 5), (2, 20, 2), (8, 3, 2), (8, 1, 0)])
def test_a_block_is_cut_by_its_limit_and_by_the_budget(max_block: int, max_tokens: int, expected: int) -> None:
    stream = stream_of(max_tokens=max_tokens)
    take(stream, draft_of(3, 6, 7, 8, 9, 10))
    work = stream.work(max_block=max_block, prefill_chunk=64)
    assert len(work.proposals) == work.block.rows - 1 == expected


# --- commits --------------------------------------------------------------------------------------------------------


def test_a_commit_names_path_count_and_token() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7, 8, sent_at=1234), now=1.0)
    frame = commit(stream, 6, 7, 0, accepted=2)
    assert (frame.path, frame.accepted, frame.token, frame.echo) == (1, 2, 0, 1234)
    assert frame.queued * CLOCK_UNIT == pytest.approx(1.0)
    assert frame.computed * CLOCK_UNIT == pytest.approx(1.0)
    assert stream.sequence == [*PROMPT, 6, 7, 0]
    assert stream.cached == 5
    frame = commit(stream, 1)
    assert (frame.path, frame.accepted, frame.token, frame.echo, frame.queued) == (1, 0, 1, None, 0)


def test_before_any_draft_the_path_is_zero() -> None:
    frame = commit(stream_of(), 6)
    assert (frame.path, frame.accepted, frame.token) == (0, 0, 6)


def test_when_all_pass_the_kv_cache_holds_all_but_the_bonus() -> None:
    stream = stream_of()
    take(stream, draft_of(3, 6, 7))
    commit(stream, 6, 7, 8, accepted=2)
    assert stream.cached == 5 == len(stream.sequence) - 1


def test_an_accepted_stop_id_travels_as_the_token() -> None:
    stream = stream_of(stop_ids=(7,))
    take(stream, draft_of(3, 6, 7, 8))
    frame = commit(stream, 6, 7, accepted=2)
    assert (frame.accepted, frame.token) == (1, 7)
    assert stream.finished
    assert stream.end().reason is EndReason.STOP
    assert (stream.end().accepted_tokens, stream.end().drafted_tokens) == (2, 3)


def test_a_stop_id_in_the_prompt_ends_nothing() -> None:
    stream = stream_of(stop_ids=(5,))
    assert not stream.finished
    commit(stream, 6)
    assert not stream.finished


def test_length_ends_a_stream() -> None:
    stream = stream_of(max_tokens=2)
    commit(stream, 6)
    assert not stream.finished
    commit(stream, 7)
    assert stream.finished
    end = stream.end()
    assert (end.reason, end.prompt_tokens, end.committed_tokens) == (EndReason.LENGTH, 3, 2)
    assert end.run_ahead_tokens == 2
    assert stream.end(EndReason.CANCELLED).reason is EndReason.CANCELLED


def test_without_drafting_nothing_is_run_ahead() -> None:
    stream = stream_of(drafting=False)
    commit(stream, 6)
    assert stream.counters.run_ahead == 0


# --- the withheld bonus ---------------------------------------------------------------------------------------------


def with_drafts(count: int, *, continues: bool, **options: Any) -> VerifierStream:
    stream = stream_of(**{"params": REJECTION, **options})
    qs = tuple(SparseQ((token,), (1,)) for token in range(6, 6 + count))
    extra: dict[str, Any] = {"confidences": (), "sparse_q": qs, "continues": continues}
    take(stream, draft_of(3, *range(6, 6 + count), **extra))
    return stream


def withholds(stream: VerifierStream, *, max_block: int = 16) -> bool:
    return stream.withholds_bonus(stream.work(max_block=max_block, prefill_chunk=64).proposals)


def test_a_bonus_waits_only_where_it_would_end_a_good_path() -> None:
    assert withholds(with_drafts(3, continues=True))
    assert not withholds(with_drafts(3, continues=False))
    assert withholds(with_drafts(6, continues=False), max_block=4)  # the rest of the path is here already
    assert not withholds(with_drafts(3, continues=True, max_tokens=4))  # the last token has no proposal
    assert not withholds(with_drafts(3, continues=True, params=SamplingParams(temperature=1.0)))
    assert not withholds(with_drafts(3, continues=True, params=SamplingParams(mode="rejection")))  # greedy
    assert not withholds(stream_of(params=REJECTION))


def test_a_withheld_bonus_leaves_a_commit_without_a_token() -> None:
    stream = with_drafts(3, continues=True)
    frame = commit(stream, 6, 7, 8, accepted=3)
    assert (frame.accepted, frame.token) == (3, None)
    assert stream.cached == 5
    assert proposed(stream) == []
    qs = (SparseQ((9,), (1,)),)
    take(stream, draft_of(6, 9, confidences=(), sparse_q=qs))
    work = stream.work(max_block=8, prefill_chunk=64)
    assert (list(work.block.tokens), work.block.start) == ([8, 9], 5)


def test_history_knows_prompt_from_answer_when_a_stream_is_resumed() -> None:
    request = Open(stream=1, token_ids=(1, 2, 3, 3), prompt_length=2, params=SamplingParams(), max_tokens=5, seed=0)
    stream = VerifierStream(slot=1, owner=Nobody(), request=request, sequence=[1, 2, 3, 3], cached=0, opened_at=0.0)
    assert stream.history._prompt == {1, 2}
    assert stream.history._answer == {3: 2}
