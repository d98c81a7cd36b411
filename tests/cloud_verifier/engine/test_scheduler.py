from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.scheduler import RunAhead, Scheduler
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.messages import Draft, Message, Open, Policy
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ


class Nobody(Owner):
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def stream_of(slot: int = 1, *, prompt: int = 1, **options: Any) -> VerifierStream:
    defaults: dict[str, Any] = {"max_tokens": 50, "seed": 1, "params": SamplingParams(), "drafting": True}
    tokens = tuple(range(prompt))
    request = Open(stream=slot, token_ids=tokens, prompt_length=prompt, **{**defaults, **options})
    return VerifierStream(slot=slot, owner=Nobody(), request=request, sequence=list(tokens), opened_at=10.0)


def send(stream: VerifierStream, *tokens: int, now: float = 10.0, **options: Any) -> None:
    start = len(stream.sequence)
    defaults: dict[str, Any] = {"path": 1, "sent_at": 0, "confidences": (0,) * len(tokens)}
    draft = Draft(stream=stream.slot, start=start, token_ids=tokens, **{**defaults, **options})
    stream.take_draft(draft, now=now, max_backlog=64)


def scheduler_of(*, step: float = 0.03, slope: float = 0.0003, **options: Any) -> Scheduler:
    """One that knows how long steps take: ``step`` seconds, and ``slope`` more for each token after the first."""
    scheduler = Scheduler(**options)
    for tokens in (1, 9, 33) * 20:
        scheduler._steps.record(tokens, step + slope * (tokens - 1))
    return scheduler


def drafted_for(*, reply: float = 0.02, gap: float = 0.005, **options: Any) -> VerifierStream:
    """A stream whose client is known to keep time."""
    stream = stream_of(**options)
    for _ in range(5):
        stream.rhythm.reply.add(reply)
        stream.rhythm.token.add(gap)
    return stream


def lose_path(stream: VerifierStream, *, at: float = 10.0) -> None:
    """The client's path ends with a commit at ``at``."""
    send(stream, 5, now=at, path=1 if stream.path is None else stream.path.id + 1)
    stream.commit(Verdict((6,), 0), stream.proposed(), started=at, ended=at)


@pytest.mark.parametrize(
    ("run_ahead", "policy", "drafting", "held"),
    [
        (RunAhead.AUTO, Policy.LATENCY, True, False),
        (RunAhead.AUTO, Policy.COST, True, True),
        (RunAhead.AUTO, Policy.COST, False, False),
        (RunAhead.ALWAYS, Policy.COST, True, False),
        (RunAhead.ALWAYS, Policy.LATENCY, True, False),
        (RunAhead.NEVER, Policy.LATENCY, True, True),
        (RunAhead.NEVER, Policy.COST, True, True),
        (RunAhead.NEVER, Policy.LATENCY, False, False),
    ],
)
def test_who_waits_for_a_draft(run_ahead: RunAhead, policy: Policy, drafting: bool, held: bool) -> None:
    stream = stream_of(policy=policy, drafting=drafting)
    plan = Scheduler(run_ahead=run_ahead).plan([stream], now=10.0)
    assert bool(plan.work) is not held
    assert (plan.wake_at is not None) is held
    send(stream, 5)
    plan = Scheduler(run_ahead=run_ahead).plan([stream], now=10.0)
    assert [len(work.proposals) for work in plan.work] == [1]


def test_patience_ends() -> None:
    stream = stream_of(policy=Policy.COST)
    scheduler = Scheduler()
    plan = scheduler.plan([stream], now=10.0)
    assert plan.wake_at == pytest.approx(10.5)  # nothing known of this client's drafts yet
    assert scheduler.plan([stream], now=plan.wake_at).work


def test_patience_follows_how_long_drafts_take_within_bounds() -> None:
    for gap, patience in ((0.2, 0.4), (0.001, 0.05), (30.0, 2.0), (0.0, 0.05)):
        stream = stream_of(policy=Policy.COST)
        for _ in range(5):
            stream.rhythm.reply.add(gap)
        assert Scheduler().plan([stream], now=10.0).wake_at == pytest.approx(10.0 + patience)


def test_patience_is_longer_where_drafts_come_irregularly() -> None:
    stream = stream_of(policy=Policy.COST)
    for gap in (0.1, 0.2, 0.3):
        stream.rhythm.reply.add(gap)
    assert stream.rhythm.reply.spread == pytest.approx(0.15)
    assert Scheduler().plan([stream], now=10.0).wake_at == pytest.approx(10.0 + 2 * 0.2 + 4 * 0.15)


def test_nobody_drafts_the_last_token_so_nobody_waits_for_it() -> None:
    assert Scheduler().plan([stream_of(policy=Policy.COST, max_tokens=1)], now=10.0).work


def test_patience_with_a_client_that_does_not_draft_shrinks_and_ends_until_it_does() -> None:
    stream, scheduler, now, patience = stream_of(policy=Policy.COST), Scheduler(), 10.0, []
    for _ in range(6):
        plan = scheduler.plan([stream], now=now)
        patience.append(0.0 if plan.wake_at is None else plan.wake_at - now)
        now += patience[-1]
        assert plan.work or scheduler.plan([stream], now=now).work
        stream.commit(Verdict((3,), 0), [], started=now, ended=now)
    assert patience == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0, 0.0])
    send(stream, 5, now=now)
    stream.commit(Verdict((5, 6), 1), stream.proposed(), started=now, ended=now)
    assert scheduler.plan([stream], now=now).wake_at is not None


def test_a_held_stream_does_not_hold_the_others() -> None:
    waiting, running = stream_of(1, policy=Policy.COST), stream_of(2)
    plan = Scheduler().plan([waiting, running], now=10.0)
    assert [work.stream for work in plan.work] == [running]
    assert plan.wake_at is None


def test_the_first_to_lose_patience_sets_the_alarm() -> None:
    early, late = stream_of(1, policy=Policy.COST), stream_of(2, policy=Policy.COST)
    late.waiting_since = 10.3
    assert Scheduler().plan([late, early], now=10.3).wake_at == pytest.approx(10.5)


def test_a_prompt_is_read_without_waiting() -> None:
    plan = Scheduler(run_ahead=RunAhead.NEVER).plan([stream_of(prompt=2)], now=10.0)
    assert [list(work.block.tokens) for work in plan.work] == [[0, 1]]


def test_prefill_is_shared_and_decoding_goes_on_beside_it() -> None:
    long, longer, decoding = stream_of(1, prompt=60), stream_of(2, prompt=80), stream_of(3)
    scheduler = scheduler_of(prefill_chunk=50)
    plan = scheduler.plan([long, longer, decoding], now=10.0)
    assert [(work.stream.slot, len(work.block.tokens), work.prefill) for work in plan.work] == [
        (1, 25, True),
        (2, 25, True),
        (3, 1, False),
    ]
    long.cached, longer.cached = 50, 25
    plan = scheduler.plan([long, longer, decoding], now=10.0)
    assert [(work.stream.slot, len(work.block.tokens), work.prefill) for work in plan.work] == [
        (1, 10, False),
        (2, 40, True),
        (3, 1, False),
    ]


def test_prompts_wait_one_step_where_it_is_not_known_what_decoding_takes() -> None:
    """Otherwise a server busy from its start reads whole chunks for ever, and whoever decodes waits for each."""
    scheduler, reading, decoding = Scheduler(), stream_of(1, prompt=10**5), stream_of(2)

    def step() -> int:
        """A step of 30 ms, and 1 ms a prompt token; how many it reads."""
        plan = scheduler.plan([reading, decoding], now=10.0)
        tokens = sum(work.prompt_tokens for work in plan.work)
        assert decoding in [work.stream for work in plan.work]
        scheduler.stepped(plan.work, 0.03 + 0.001 * tokens)
        reading.cached += tokens
        return tokens

    read = [step() for _ in range(300)]
    assert read[0] == 0
    assert read[20] == pytest.approx(30, abs=1)  # as long as the step itself
    assert read.count(0) == pytest.approx(300 / 65, abs=1)


def test_blocks_are_limited() -> None:
    stream = stream_of()
    send(stream, *range(1, 10))
    (work,) = Scheduler(max_block=4).plan([stream], now=10.0).work
    assert len(work.proposals) == 4


def test_nothing_to_do() -> None:
    plan = Scheduler().plan([], now=10.0)
    assert (plan.work, plan.wake_at) == ([], None)


@pytest.mark.parametrize(("continues", "held"), [(True, True), (False, False)])
def test_by_rejection_the_rest_of_a_path_is_awaited(continues: bool, held: bool) -> None:
    """A token that the target draws alone would end the path; shared noise has no such trouble."""
    stream = stream_of(params=SamplingParams(temperature=1.0, mode="rejection"))
    send(stream, 5, confidences=(), sparse_q=(SparseQ((5,), (1,)),), continues=continues)
    stream.sequence.append(5)  # committed, with the bonus withheld
    stream.cached = 1
    assert stream.path is not None
    stream.path.settle(1, [5])
    assert bool(Scheduler().plan([stream], now=10.0).work) is not held
    assert Scheduler().plan([stream], now=13.0).work
    assert Scheduler(run_ahead=RunAhead.ALWAYS).plan([stream], now=10.0).work
    stream.path.alive = False
    assert Scheduler().plan([stream], now=10.0).work


# --- the latency policy: a step is put off for a draft that is nearly here -------------------------------------------


@pytest.mark.parametrize(("reply", "held"), [(0.003, True), (0.004, True), (0.005, False), (0.5, False)])
def test_a_draft_that_is_nearly_here_is_awaited(reply: float, held: bool) -> None:
    stream = drafted_for(reply=reply)
    lose_path(stream)
    plan = scheduler_of().plan([stream], now=10.0)
    assert not plan.work if held else plan.work
    assert plan.wake_at == (pytest.approx(10.0 + reply + 0.002) if held else None)


def test_with_nothing_known_of_steps_or_drafts_nothing_is_awaited() -> None:
    stream = drafted_for(reply=0.003)
    lose_path(stream)
    assert Scheduler().plan([stream], now=10.0).work
    assert scheduler_of().plan([stream_of()], now=10.0).work


def test_a_client_that_keeps_no_time_is_not_awaited() -> None:
    stream = stream_of()
    for reply in (0.0, 0.003, 0.006) * 3:
        stream.rhythm.reply.add(reply)
    lose_path(stream)
    assert stream.rhythm.reply.value == pytest.approx(0.003)
    assert scheduler_of().plan([stream], now=10.0).work


def test_after_run_ahead_the_second_token_of_the_answer_is_awaited() -> None:
    stream = drafted_for(reply=0.027)
    lose_path(stream)
    scheduler = scheduler_of()
    (work,) = scheduler.plan([stream], now=10.0).work
    stream.commit(Verdict((7,), 0), work.proposals, started=10.0, ended=10.03)
    assert scheduler.plan([stream], now=10.03).wake_at == pytest.approx(10.0 + 0.027 + 0.005 + 0.002)


def test_who_has_work_takes_those_along_that_would_have_waited() -> None:
    waiting, running = drafted_for(slot=1, reply=0.003), stream_of(2, drafting=False)
    lose_path(waiting)
    scheduler = scheduler_of()
    assert scheduler.plan([waiting], now=10.0).work == []
    plan = scheduler.plan([waiting, running], now=10.001)
    assert [work.stream for work in plan.work] == [waiting, running]
    assert waiting.misses == 0


def test_after_a_few_waits_in_vain_there_are_none_until_a_draft_arrives() -> None:
    stream, scheduler, now, waits = drafted_for(reply=0.003), scheduler_of(), 10.0, []
    lose_path(stream)
    for _ in range(7):
        stream.rhythm._commits.clear()
        stream.rhythm.committed(len(stream.sequence), at=now)  # as if each commit asked for an answer
        plan = scheduler.plan([stream], now=now)
        waits.append(plan.wake_at is not None)
        now = plan.wake_at or now
        assert plan.work or scheduler.plan([stream], now=now).work
        stream.commit(Verdict((6,), 0), [], started=now, ended=now)
    assert waits == [True] * 4 + [False] * 3
    lose_path(stream, at=now)
    assert scheduler.plan([stream], now=now).wake_at is not None


@pytest.mark.parametrize(
    ("gap", "confidence", "continues", "held"),
    [(0.004, 0, True, True), (0.004, 0, False, False), (0.004, 60, True, False), (0.007, 0, True, False)],
)
def test_a_token_more_is_awaited_where_it_is_likely_and_near(
    gap: float, confidence: int, continues: bool, held: bool
) -> None:
    stream = drafted_for(gap=gap)
    send(stream, 5, continues=continues, confidences=(confidence,))
    plan = scheduler_of().plan([stream], now=10.0)
    assert plan.wake_at == (pytest.approx(10.0 + gap + 0.002) if held else None)


# --- the cost policy: a block grows while that is cheaper than another step -------------------------------------------


@pytest.mark.parametrize("run_ahead", [RunAhead.AUTO, RunAhead.NEVER])
@pytest.mark.parametrize(
    ("gap", "confidence", "continues", "held"),
    [
        (0.007, 0, True, True),
        (0.019, 0, True, True),
        (0.022, 0, True, False),
        (0.007, 60, True, False),
        (0.007, 0, False, False),
    ],
)
def test_a_block_grows_while_the_next_token_is_worth_its_time(
    run_ahead: RunAhead, gap: float, confidence: int, continues: bool, held: bool
) -> None:
    policy = Policy.COST if run_ahead is RunAhead.AUTO else Policy.LATENCY
    stream = drafted_for(gap=gap, policy=policy)
    send(stream, 5, continues=continues, confidences=(confidence,))
    scheduler = scheduler_of(run_ahead=run_ahead)
    plan = scheduler.plan([stream], now=10.0)
    assert plan.wake_at == (pytest.approx(10.0 + 2 * gap + 0.002) if held else None)
    if plan.wake_at is not None:
        assert scheduler.plan([stream], now=plan.wake_at).work


def test_each_token_that_arrives_renews_the_wait_until_the_chances_are_used_up() -> None:
    stream, scheduler = drafted_for(policy=Policy.COST), scheduler_of()
    for count in range(10):
        now = 10.0 + 0.005 * count
        stream.take_draft(
            Draft(stream=1, path=1, start=1 + count, token_ids=(5,), confidences=(8,), sent_at=0, continues=True),
            now=now,
            max_backlog=64,
        )
        plan = scheduler.plan([stream], now=now)
        if plan.work:
            break
        assert plan.wake_at == pytest.approx(now + 0.012)
    assert 2 <= len(stream.proposed()) <= 6


@pytest.mark.parametrize("options", [{"max_block": 3}, {"max_tokens": 4}])
def test_a_full_block_waits_for_nothing(options: dict[str, int]) -> None:
    max_block = options.pop("max_block", 16)
    stream = drafted_for(policy=Policy.COST, **options)
    send(stream, 5, 6, 7, continues=True)
    assert scheduler_of(max_block=max_block).plan([stream], now=10.0).work


# --- in a crowd -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("crowd", "others", "reply", "aside"),
    [(3, 3, 0.025, True), (3, 2, 0.025, False), (3, 3, 0.05, False), (None, 9, 0.025, False)],
)
def test_in_a_crowd_a_stream_waits_for_a_draft_that_comes_within_the_step(
    crowd: int | None, others: int, reply: float, aside: bool
) -> None:
    stream = drafted_for(reply=reply)
    lose_path(stream)
    crowded = [stream_of(slot, drafting=False) for slot in range(2, 2 + others)]
    plan = scheduler_of(crowd=crowd).plan([stream, *crowded], now=10.0)
    assert (stream in [work.stream for work in plan.work]) is not aside
    assert len(plan.work) == others + (not aside)


# --- how much of a draft is verified ----------------------------------------------------------------------------------


def verified(stream: VerifierStream, *beside: VerifierStream, **options: Any) -> int:
    plan = scheduler_of(**options).plan([*beside, stream], now=11.0)
    return len(plan.work[-1].proposals)


DOUBTFUL = [0, 12, 12, 12, 12, 40, 40]


def test_while_tokens_cost_little_all_of_a_draft_is_verified() -> None:
    stream = stream_of()
    send(stream, *[5] * 7, confidences=tuple(DOUBTFUL))
    assert Scheduler().plan([stream], now=11.0).work[0].proposals == stream.proposed()  # nothing known of steps
    assert verified(stream, slope=0.0) == 7
    assert verified(stream, slope=0.0003) == 6
    assert 2 <= verified(stream, slope=0.003) <= 4
    assert len(stream.proposed()) == 7  # the rest is for the next step


def test_beside_others_a_token_has_to_be_worth_more() -> None:
    stream = stream_of()
    send(stream, *[5] * 7, confidences=tuple(DOUBTFUL))
    counts = [
        verified(stream, *[stream_of(slot, drafting=False) for slot in range(2, 2 + others)], slope=0.001)
        for others in (0, 4, 16)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] > 0


def test_a_draft_that_is_never_right_is_not_verified_where_tokens_are_dear() -> None:
    stream = stream_of()
    for _ in range(300):
        stream.odds.record(0, False)
    send(stream, 5, 6)
    assert verified(stream, slope=0.003) == 0


def test_by_rejection_the_first_proposal_is_always_tested() -> None:
    """What would be drawn instead of it must not depend on what it is."""
    stream = stream_of(params=SamplingParams(temperature=1.0, mode="rejection"))
    for byte in (0, 255):
        for _ in range(300):
            stream.odds.record(byte, False)
    unlikely = SparseQ((5, 6), (1, 255))
    send(stream, 5, 5, confidences=(), sparse_q=(unlikely, unlikely), continues=True)
    (work,) = scheduler_of(slope=0.01).plan([stream], now=11.0).work
    assert len(work.proposals) == 1
    assert stream.withholds_bonus(work.proposals)
    stream.commit(Verdict((5,), 1), work.proposals, started=11.0, ended=11.0)
    assert verified(stream, slope=0.01) == 1


def test_steps_that_read_prompts_teach_nothing() -> None:
    scheduler = Scheduler()
    scheduler.stepped(scheduler.plan([stream_of(prompt=9)], now=10.0).work, 1.0)
    assert scheduler._steps.predict(1) is None
    decoding = stream_of()
    send(decoding, 5, 6)
    scheduler.stepped(scheduler.plan([decoding, stream_of(2)], now=10.0).work, 0.05)
    assert scheduler._steps.predict(4) == pytest.approx(0.05)


def test_a_client_that_rests_is_not_waited_for_until_it_drafts_again() -> None:
    stream = stream_of(policy=Policy.COST)
    assert not Scheduler().plan([stream], now=10.0).work
    send(stream, continues=False)
    assert Scheduler().plan([stream], now=10.0).work
    stream.commit(Verdict((3,), 0), [], started=10.0, ended=10.0)
    assert Scheduler().plan([stream], now=10.0).work
    send(stream, 4, path=2)
    stream.commit(Verdict((4, 5), 1), stream.proposed(), started=10.0, ended=10.0)
    assert not Scheduler().plan([stream], now=10.0).work


@pytest.mark.parametrize("tokens", [(), (7,)])
def test_frames_of_no_use_do_not_keep_a_stream_waiting(tokens: tuple[int, ...]) -> None:
    """Empty ones, and tokens that are committed already, come at every step while another stream runs."""
    waiting, other = stream_of(1, policy=Policy.COST, prompt=2), stream_of(2)
    scheduler, now, advanced = scheduler_of(), 10.0, 0
    for step in range(400):
        plan = scheduler.plan([waiting, other], now=now)
        for work in plan.work:
            work.stream.commit(Verdict((3,), 0), [], started=now, ended=now + 0.03)
            work.stream.remaining += 1
            advanced += work.stream is waiting
        now += 0.03
        late = Draft(
            stream=1, path=step + 1, start=len(waiting.sequence) - len(tokens), token_ids=tokens,
            confidences=(10,) * len(tokens), sent_at=0, continues=not tokens,
        )  # fmt: skip
        waiting.take_draft(late, now=now, max_backlog=64)
    assert advanced > 300
