from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from draftwire.cloud_verifier.scheduler import RunAhead, Scheduler
from draftwire.cloud_verifier.stream import VerifierStream
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.messages import Draft, Message, Open, Policy
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ


class Nobody:
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def stream_of(slot: int = 1, *, prompt: int = 1, **options: Any) -> VerifierStream:
    defaults: dict[str, Any] = {"max_tokens": 50, "seed": 1, "params": SamplingParams(), "drafting": True}
    tokens = tuple(range(prompt))
    request = Open(stream=slot, token_ids=tokens, prompt_length=prompt, **{**defaults, **options})
    return VerifierStream(slot=slot, owner=Nobody(), request=request, sequence=list(tokens), cached=0, opened_at=10.0)


def send(stream: VerifierStream, *tokens: int, now: float = 10.0, **options: Any) -> None:
    start = len(stream.sequence)
    defaults: dict[str, Any] = {"path": 1, "sent_at": 0, "confidences": (0,) * len(tokens)}
    draft = Draft(stream=stream.slot, start=start, token_ids=tokens, **{**defaults, **options})
    stream.take_draft(draft, now=now, max_backlog=64)


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


@pytest.mark.parametrize(("gap", "patience"), [(0.2, 0.4), (0.001, 0.05), (30.0, 2.0), (-0.01, 0.05)])
def test_patience_follows_how_long_drafts_take_within_bounds(gap: float, patience: float) -> None:
    stream = stream_of(policy=Policy.COST)
    stream.draft_gap = gap
    assert Scheduler().plan([stream], now=10.0).wake_at == pytest.approx(10.0 + patience)


def test_nobody_drafts_the_last_token_so_nobody_waits_for_it() -> None:
    assert Scheduler().plan([stream_of(policy=Policy.COST, max_tokens=1)], now=10.0).work


def test_patience_with_a_client_that_does_not_draft_shrinks_and_ends_until_it_does() -> None:
    stream, now, patience = stream_of(policy=Policy.COST), 10.0, []
    for _ in range(6):
        plan = Scheduler().plan([stream], now=now)
        patience.append(0.0 if plan.wake_at is None else plan.wake_at - now)
        stream.commit(Verdict((3,), 0), [], started=now, ended=now)
    assert patience == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0, 0.0])
    send(stream, 5, now=now)
    stream.commit(Verdict((5, 6), 1), stream.proposed(), started=now, ended=now)
    assert Scheduler().plan([stream], now=now).wake_at is not None


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
    long, longer, decoding = stream_of(1, prompt=30), stream_of(2, prompt=40), stream_of(3)
    scheduler = Scheduler(prefill_chunk=25)
    plan = scheduler.plan([long, longer, decoding], now=10.0)
    assert [(work.stream.slot, len(work.block.tokens), work.prefill) for work in plan.work] == [
        (1, 25, True),
        (3, 1, False),
    ]
    long.cached = 25
    plan = scheduler.plan([long, longer, decoding], now=10.0)
    assert [(work.stream.slot, len(work.block.tokens), work.prefill) for work in plan.work] == [
        (1, 5, False),
        (2, 20, True),
        (3, 1, False),
    ]


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
    stream.path.alive = False
    assert Scheduler().plan([stream], now=10.0).work
