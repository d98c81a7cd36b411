"""A generation whose stream is lost: it goes on as another one, and what was guessed is not lost with it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from draftwire.edge_client.generation import Generation
from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.errors import IllegalMessageError
from draftwire.protocol.messages import Commit, Draft, EndReason
from hypothesis import given
from hypothesis import strategies as st

PROMPT = (3, 4, 5)


def generation_of(**options: Any) -> Generation:
    defaults: dict[str, Any] = {"prompt_ids": PROMPT, "max_tokens": 20, "stop_ids": (), "most_ahead": 8}
    return Generation(stream=1, **{**defaults, **options})


def draft(generation: Generation, *tokens: int) -> Draft:
    for token in tokens:
        assert generation.add(generation.path, Proposal(token), 10 + token)
    frame = generation.take_frame(sent_at=7, continues=True)
    assert frame is not None
    return frame


def test_what_is_guessed_beyond_the_committed_tokens_is_sent_anew_as_path_1() -> None:
    generation = generation_of()
    draft(generation, 1)
    generation.apply(Commit(stream=1, path=1, accepted=0, token=9))  # the first path is wrong
    assert draft(generation, 6, 7, 8).path == 2
    generation.apply(Commit(stream=1, path=1, accepted=0, token=6))
    generation.resume(4, most_ahead=8)
    assert generation.sequence == [3, 4, 5, 9, 6]
    assert generation.context() == [3, 4, 5, 9, 6, 7, 8]
    frame = generation.take_frame(sent_at=9, continues=False)
    assert frame == Draft(stream=4, path=1, start=5, token_ids=(7, 8), confidences=(17, 18), sent_at=9)
    committed = generation.apply(Commit(stream=4, path=1, accepted=2, token=0))
    assert committed.token_ids == (7, 8, 0)
    assert committed.tested == ((17, True), (18, True))


def test_no_more_is_kept_than_the_new_verifier_takes() -> None:
    generation = generation_of()
    draft(generation, 6, 7, 8, 9)
    generation.resume(2, most_ahead=2)
    assert generation.context() == [3, 4, 5, 6, 7]
    assert generation.room == 0
    frame = generation.take_frame(sent_at=0, continues=False)
    assert frame is not None
    assert frame.token_ids == (6, 7)


def test_an_echo_of_the_lost_stream_proves_nothing_on_the_new_one() -> None:
    generation = generation_of()
    draft(generation, 6, 7)
    generation.resume(2, most_ahead=8)
    committed = generation.apply(Commit(stream=2, path=0, accepted=0, token=6))
    assert committed.block == 0
    assert committed.guessed == (True,)


def test_accepted_tokens_must_have_been_sent_on_this_stream() -> None:
    generation = generation_of()
    draft(generation, 6, 7)
    generation.resume(2, most_ahead=8)
    with pytest.raises(IllegalMessageError, match="never sent"):
        generation.apply(Commit(stream=2, path=1, accepted=1, token=7))


def test_a_rest_is_said_again() -> None:
    generation = generation_of()
    assert generation.take_rest(sent_at=0) is not None
    assert generation.take_rest(sent_at=0) is None
    generation.resume(2, most_ahead=8)
    assert generation.take_rest(sent_at=0) is not None


def test_before_anything_happened_only_the_id_changes() -> None:
    generation = generation_of()
    generation.resume(9, most_ahead=4)
    assert draft(generation, 6) == Draft(
        stream=9, path=1, start=3, token_ids=(6,), confidences=(16,), sent_at=7, continues=True
    )


def test_why_it_ended() -> None:
    generation = generation_of(prompt_ids=(2, 0), max_tokens=2, stop_ids=(0,))
    assert (generation.ended, generation.remaining) == (None, 2)  # the prompt's last token is no end
    generation.extend(5)
    assert (generation.ended, generation.remaining) == (None, 1)
    generation.extend(6)
    assert (generation.ended, generation.remaining) == (EndReason.LENGTH, 0)
    stopped = generation_of(max_tokens=1, stop_ids=(7,))
    stopped.extend(7)
    assert stopped.ended is EndReason.STOP


def test_a_token_of_the_drafts_own_ends_the_path() -> None:
    generation = generation_of()
    draft(generation, 6, 7)
    generation.extend(6)
    assert generation.answer == (6,)
    assert generation.context() == [3, 4, 5, 6]


class Verifier:
    """What the verifier of one stream holds of its path, and the answer that it commits."""

    def __init__(self, stream: int, truth: list[int]) -> None:
        self.stream = stream
        self._truth = truth
        self._path = 0
        self._start = 0
        self._held: list[int] = []

    def take(self, frame: Draft, sequence: list[int]) -> None:
        """A frame in order: of this stream, of the path held or a later one, without a gap."""
        assert frame.stream == self.stream
        if frame.path != self._path:
            assert frame.path > self._path
            assert frame.start <= len(sequence)
            self._path, self._start, self._held = frame.path, frame.start, []
        assert frame.start == self._start + len(self._held)
        self._held += frame.token_ids

    def step(self, generation: Generation) -> Commit:
        """Accept what is right of the path, and one token more."""
        at, sequence = len(generation.sequence), generation.sequence
        alive = self._path and self._held[: at - self._start] == sequence[self._start : at]
        rest = self._truth[at - len(PROMPT) :]
        accepted = 0
        for proposed, right in zip(self._held[at - self._start :] if alive else [], rest[:-1], strict=False):
            if proposed != right:
                break
            accepted += 1
        return Commit(stream=self.stream, path=self._path, accepted=accepted, token=rest[accepted])


@given(moves=st.lists(st.sampled_from(["draft", "draft", "commit", "lose"]), max_size=60), seed=st.integers(0, 99))
def test_however_often_it_is_lost_the_sequence_and_the_frames_fit_together(moves: list[str], seed: int) -> None:
    """A verifier that heard only of the new stream finds every frame in order, and nothing is committed twice."""
    chance = random.Random(seed)
    truth = [chance.randrange(2) for _ in range(15)]
    generation, verifier = generation_of(max_tokens=15), Verifier(1, truth)
    for move in [*moves, *["commit"] * 15]:
        if generation.ended is not None:
            break
        if move == "draft" and generation.room:
            generation.add(generation.path, Proposal(chance.randrange(2)), 0)
            frame = generation.take_frame(sent_at=0, continues=False)
            if frame is not None:
                verifier.take(frame, generation.sequence)
        elif move == "lose":
            verifier = Verifier(verifier.stream + 1, truth)
            generation.resume(verifier.stream, most_ahead=8)
        elif move == "commit":
            generation.apply(verifier.step(generation))
        assert list(generation.answer) == truth[: len(generation.answer)]
    assert list(generation.answer) == truth
