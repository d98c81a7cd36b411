"""What the engine commits is what decoding with the target alone gives, whatever drafts arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import (
    EndReason,
)
from draftwire.protocol.noise import Domain, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, process_logits
from draftwire.protocol.sparse_q import SparseQ

from .engine_rig import COUPLED, GREEDY, MODES, PENALIZED, PROMPT, REJECTION, Device, V, alone, finish, make, step


def test_the_reference_is_not_trivial() -> None:
    """The tests above compare sequences that vary."""
    assert len(set(alone(GREEDY, 20))) > 5
    assert len({tuple(alone(replace(COUPLED), 20, seed=seed)) for seed in range(5)}) == 5


# --- without drafts, and with every kind of draft ----------------------------------------------------------------


@pytest.mark.parametrize("params", [GREEDY, COUPLED, REJECTION, PENALIZED])
def test_without_drafts_it_is_plain_streaming(params: SamplingParams) -> None:
    engine, device = make()
    device.open(params=params, drafting=False)
    finish(engine)
    assert device.answer() == alone(params)
    assert all(commit.accepted == 0 and commit.path == 0 for commit in device.commits())
    end = device.end()
    assert (end.reason, end.prompt_tokens, end.committed_tokens, end.target_passes) == (EndReason.LENGTH, 4, 20, 20)
    assert end.drafted_tokens == end.accepted_tokens == end.run_ahead_tokens == 0


@MODES
def test_a_draft_that_is_the_target_is_accepted_at_every_position(params: SamplingParams) -> None:
    count, ahead = 400, 8
    engine, device = make()
    expected = alone(params, count)
    device.open(params=params, max_tokens=count)

    def draft() -> None:
        done = len(device.answer())
        if done:
            device.draft(len(PROMPT) + done, expected[done : done + ahead], path=1 + done)

    draft_first = expected[:ahead]
    device.draft(len(PROMPT), draft_first, path=1)
    finish(engine, draft)
    assert device.answer() == expected
    end = device.end()
    assert end.accepted_tokens == end.drafted_tokens
    assert end.run_ahead_tokens == 0
    accepted = [commit.accepted for commit in device.commits()]
    assert set(accepted[:-1]) == {ahead}
    assert end.target_passes == len(accepted) == -(-count // (ahead + 1))


@MODES
def test_one_path_that_goes_on_is_accepted_without_restarts(params: SamplingParams) -> None:
    """The device's path runs on while commits arrive: bonus tokens are part of it, none is lost."""
    count = 300
    engine, device = make()
    expected = alone(params, count)
    device.open(params=params, max_tokens=count)
    sent = 0

    def draft() -> None:
        nonlocal sent
        upto = min(len(device.answer()) + 12, count - 1)
        if upto > sent:
            device.draft(len(PROMPT) + sent, expected[sent:upto])
            sent = upto

    draft()
    finish(engine, draft)
    assert device.answer() == expected
    end = device.end()
    assert end.drafted_tokens == end.accepted_tokens
    assert {commit.path for commit in device.commits()} == {1}
    assert end.target_passes < count / 6


@MODES
@pytest.mark.parametrize("ahead", [1, 4])
def test_an_always_wrong_draft_changes_nothing(params: SamplingParams, ahead: int) -> None:
    engine, device = make()
    expected = alone(params, 60)
    device.open(params=params, max_tokens=60)

    def draft() -> None:
        done = len(device.answer())
        wrong = [(token + 1) % V for token in expected[done : done + ahead]]
        if wrong:
            device.draft(len(PROMPT) + done, wrong, path=1 + done)

    draft()
    finish(engine, draft)
    assert device.answer() == expected
    end = device.end()
    assert end.accepted_tokens == 0
    assert end.target_passes == 60


def test_by_rejection_nothing_is_drawn_past_a_path_that_goes_on() -> None:
    target, outcomes = TableTarget(vocabulary_size=V, seed=3), set()
    for seed in range(40):
        engine, device = make()
        device.open(params=REJECTION, max_tokens=10, seed=seed)
        tokens: list[int] = []
        qs: list[SparseQ] = []
        for position in range(4, 6):
            scores = process_logits(target.logits_after([*PROMPT, *tokens]), REJECTION, TokenHistory())
            qs.append(SparseQ.from_scores(scores, 64))
            tokens.append(qs[-1].sample(uniform(seed, position, Domain.DRAFT)))
        device.draft(4, tokens, sparse_q=tuple(qs), continues=True)
        step(engine)
        (commit,) = device.commits()
        assert len(device.answer()) <= 2
        assert (commit.token is None) is (commit.accepted == 2)
        outcomes.add(commit.accepted)
        device.draft(len(PROMPT) + 2, [], sparse_q=())  # there is no more
        finish(engine)
        assert len(device.answer()) == 10
    assert 2 in outcomes


# --- how much is committed ---------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("max_tokens", range(1, 11))
def test_exactly_max_tokens_with_eight_proposals(params: SamplingParams, max_tokens: int) -> None:
    engine, device = make()
    expected = alone(params, 12)
    device.open(params=params, max_tokens=max_tokens)
    device.draft(len(PROMPT), expected[:8])
    finish(engine)
    assert device.answer() == expected[:max_tokens]
    end = device.end()
    assert (end.reason, end.committed_tokens) == (EndReason.LENGTH, max_tokens)
    assert end.drafted_tokens == end.accepted_tokens == min(8, max_tokens - 1)
    assert engine.counters.committed == max_tokens


def first_seen(tokens: Sequence[int], index: int) -> int:
    """A token of ``tokens`` at ``index`` or later that has not come up before."""
    return next(at for at in range(index, len(tokens)) if tokens[at] not in tokens[:at])


@pytest.mark.parametrize("where", ["alone", "first", "inside", "last", "bonus"])
def test_a_stop_id_ends_the_stream_wherever_it_stands(where: str) -> None:
    expected = alone(COUPLED, 40)
    at = first_seen(expected, 8)
    before, after = {"alone": (0, -1), "first": (0, 4), "inside": (3, 3), "last": (4, 0), "bonus": (4, -1)}[where]
    engine, device = make()
    device.open(params=COUPLED, max_tokens=40, stop_ids=(expected[at],))
    step(engine)
    while len(device.answer()) < at - before:
        step(engine)
    device.draft(len(PROMPT) + at - before, expected[at - before : at + 1 + after])
    finish(engine)
    assert device.answer() == expected[: at + 1]
    end = device.end()
    assert (end.reason, end.committed_tokens) == (EndReason.STOP, at + 1)
    assert end.accepted_tokens == before + (after >= 0)
    assert end.target_passes == at + 1 - before


# --- drafts that come late, out of date or against the rules -----------------------------------------------------


@MODES
def test_run_ahead_and_then_a_late_draft(params: SamplingParams) -> None:
    """Two tokens by run-ahead; the draft for all of it comes late, agrees, and its rest is of use."""
    engine, device = make()
    expected = alone(params, 20)
    device.open(params=params)
    step(engine)
    step(engine)
    assert device.answer() == expected[:2]
    device.draft(len(PROMPT), expected[:6], sent_at=99)
    step(engine)
    commit = device.commits()[-1]
    assert (commit.path, commit.accepted, commit.token, commit.echo) == (1, 4, expected[6], 99)
    finish(engine)
    assert device.answer() == expected
    assert device.end().run_ahead_tokens == 2 + 13


@MODES
def test_a_late_draft_that_disagrees_dies_silently(params: SamplingParams) -> None:
    engine, device = make()
    expected = alone(params, 20)
    device.open(params=params)
    step(engine)
    device.draft(len(PROMPT), [(expected[0] + 1) % V, *expected[1:5]])
    finish(engine)
    assert device.answer() == expected
    assert device.end().drafted_tokens == 0


def test_a_stale_path_is_ignored() -> None:
    engine, device = make()
    expected = alone(GREEDY, 20)
    device.open()
    device.draft(4, expected[:3], path=5)
    device.draft(4, [0, 0, 0, 0], path=4)
    device.draft(1000, [0], path=2)
    step(engine)
    assert device.answer() == expected[:4]
    assert device.commits()[0].path == 5


@pytest.mark.parametrize(
    ("drafts", "code"),
    [
        ([(4, 1, 2), (7, 1, 1)], ErrorCode.ILLEGAL_MESSAGE),  # a gap
        ([(5, 1, 1)], ErrorCode.ILLEGAL_MESSAGE),  # a new path beyond what is committed
        ([(4, 1, 25)], ErrorCode.FRAME_TOO_LARGE),  # more than is held
        ([(4, 1, 20), (24, 1, 5)], ErrorCode.FRAME_TOO_LARGE),
    ],
)
def test_a_draft_against_the_rules_ends_its_stream_alone(drafts: list[tuple[int, int, int]], code: ErrorCode) -> None:
    engine, device = make()
    device.open(1)
    device.open(2, params=COUPLED)
    for start, path, count in drafts:
        device.draft(start, [1] * count, path=path)
    device.draft(4, [1], path=9)  # on its way when the stream ended
    finish(engine)
    assert device.error(1).code is code
    assert device.answer(2) == alone(COUPLED)
    assert device.end(2).reason is EndReason.LENGTH


def test_a_draft_for_a_stream_that_has_ended_is_ignored() -> None:
    engine, device = make()
    device.open(max_tokens=1)
    finish(engine)
    heard = len(device.messages)
    device.draft(5, [1])
    device.draft(4, [1], stream=17)
    engine.cancel(device, 1)
    step(engine)
    assert len(device.messages) == heard


# --- prompts, seeds, neighbours ----------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 3, 7, 50, 1000])
@MODES
def test_chunks_of_the_prompt_change_nothing(params: SamplingParams, chunk: int) -> None:
    prompt = [int(token) for token in np.random.default_rng(1).integers(0, V, 50)]
    engine, device = make(prefill_chunk=chunk)
    device.open(params=params, prompt=prompt)
    finish(engine)
    assert device.answer() == alone(params, prompt=prompt)
    assert device.end().target_passes == 20  # reading the prompt is none of them
    assert engine.counters.steps == 20 + -(-50 // chunk) - 1


@MODES
def test_streams_do_not_touch_one_another(params: SamplingParams) -> None:
    expected = alone(params, 50)
    engine, device = make(prefill_chunk=3)
    other = Device(engine)
    device.open(1, params=params, max_tokens=50)
    other.open(1, params=params, max_tokens=50)  # the same stream id and seed, another owner
    device.open(2, params=COUPLED, seed=99, prompt=(1, 2, 3, 4, 5, 6), max_tokens=37)
    other.open(2, params=REJECTION, seed=3, prompt=(8,), max_tokens=5)

    def draft() -> None:
        done = len(other.answer(1))
        if other.answer(1) and 1 not in other.ended:
            tokens = expected[done : done + 3]
            other.draft(len(PROMPT) + done, tokens if done % 3 else [0, *tokens], path=1 + done)

    finish(engine, draft)
    assert device.answer(1) == other.answer(1) == expected
    assert device.answer(2) == alone(COUPLED, 37, prompt=(1, 2, 3, 4, 5, 6), seed=99)
    assert other.answer(2) == alone(REJECTION, 5, prompt=(8,), seed=3)
    assert other.end(1).accepted_tokens > 0


def test_the_seed_decides() -> None:
    engine, device = make()
    for stream, seed in enumerate((1, 1, 2), start=1):
        device.open(stream, params=COUPLED, seed=seed)
    finish(engine)
    assert device.answer(1) == device.answer(2) != device.answer(3)


@MODES
def test_a_stream_opened_again_with_what_was_committed_goes_on_the_same(params: SamplingParams) -> None:
    expected = alone(params, 20)
    engine, device = make()
    device.open(params=params, prompt=[*PROMPT, *expected[:9]], prompt_length=len(PROMPT), max_tokens=11)
    finish(engine)
    assert device.answer() == expected[9:]
