"""A whole step keeps to its budget, whatever decodes, reads and drafts in it; and everybody gets on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle
from typing import Any

from draftwire.cloud_verifier.engine.scheduler import Plan, RunAhead, Scheduler
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.stream import VerifierStream, Work
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.messages import Policy
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.sparse_q import SparseQ
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_scheduler import scheduler_of, send, stream_of

REJECTION = SamplingParams(temperature=0.9, mode="rejection")
ROUNDS = 6


@dataclass(frozen=True)
class Client:
    """What a stream asks for, and what is there of it."""

    prompt: int
    known: int
    drafts: int
    confidence: int
    rejection: bool
    policy: Policy
    speculation: Speculation
    continues: bool
    max_tokens: int

    def stream(self, slot: int) -> VerifierStream:
        params = REJECTION if self.rejection else SamplingParams()
        stream = stream_of(slot, prompt=self.prompt, max_tokens=self.max_tokens, policy=self.policy, params=params)
        stream.speculation = self.speculation
        stream.cached = min(self.known, self.prompt - 1)
        return stream

    def draft(self, stream: VerifierStream) -> None:
        """A new path, from what is committed by now."""
        tokens = tuple(range(1, self.drafts + 1))
        options: dict[str, Any] = {"path": stream.path.id + 1 if stream.path else 1, "continues": self.continues}
        if self.rejection:
            options |= {"confidences": (), "sparse_q": tuple(SparseQ((token,), (1,)) for token in tokens)}
        else:
            options["confidences"] = (self.confidence,) * self.drafts
        send(stream, *tokens, **options)


CLIENTS = st.builds(
    Client,
    prompt=st.one_of(st.just(1), st.integers(1, 400)),
    known=st.integers(0, 400),
    drafts=st.integers(1, 30),
    confidence=st.integers(0, 255),
    rejection=st.booleans(),
    policy=st.sampled_from(Policy),
    speculation=st.sampled_from(Speculation),
    continues=st.booleans(),
    max_tokens=st.integers(1, 40),
)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "run_ahead": st.sampled_from(RunAhead),
    "crowd": st.none() | st.integers(1, 4),
    "max_block": st.integers(1, 16),
    "prefill_chunk": st.integers(1, 300),
    "step_tokens": st.integers(1, 120),
}
TIMES = {"step": st.sampled_from([0.001, 0.03]), "slope": st.sampled_from([0.0, 1e-5, 0.01])}
SCHEDULERS = st.builds(Scheduler, **OPTIONS) | st.builds(scheduler_of, **TIMES, **OPTIONS)
"""Those that know nothing yet of how long steps take, and those that do."""


def check(plan: Plan, streams: list[VerifierStream], scheduler: Scheduler) -> None:
    """The budget, and what goes before it: a token for each stream that decodes, and one for whoever reads."""
    taking_part = {id(share.stream) for share in plan.work}
    assert len(taking_part) == len(plan.work)
    reading = [share for share in plan.work if share.stream.prefilling]
    decoding = len(plan.work) - len(reading)
    tokens = sum(len(share.block.tokens) for share in plan.work)
    assert tokens <= max(scheduler._step_tokens, decoding + bool(reading))
    prompts = sum(min(len(share.block.tokens), len(share.stream.sequence) - share.stream.cached) for share in reading)
    assert prompts <= scheduler._prefill_chunk
    assert all(len(share.proposals) <= scheduler._max_block for share in plan.work)
    assert all(len(share.proposals) < share.stream.remaining for share in plan.work)
    if plan.work:
        left_out = [stream for stream in streams if id(stream) not in taking_part]
        assert all(stream.prefilling or stream.held for stream in left_out)  # nobody else is made to wait
    else:
        assert plan.wake_at is not None or not streams


def advance(share: Work, *, accepted: int, now: float) -> None:
    """As the engine does with a step's outcome."""
    stream = share.stream
    if share.prefill:
        stream.cached += len(share.block.tokens)
        return
    passed = tuple(proposal.token for proposal in share.proposals[:accepted])
    stream.commit(Verdict((*passed, 39), len(passed)), share.proposals, started=now, ended=now)


@settings(deadline=None)
@given(
    scheduler=SCHEDULERS,
    clients=st.lists(CLIENTS, min_size=1, max_size=12),
    drafting=st.lists(st.booleans(), min_size=1),
    accepted=st.lists(st.integers(0, 16), min_size=1),
)
def test_a_plan_never_exceeds_the_budget(
    scheduler: Scheduler, clients: list[Client], drafting: list[bool], accepted: list[int]
) -> None:
    """Over some steps, in which prompts come to their end, and drafts come or do not, and pass or do not."""
    streams = [client.stream(slot) for slot, client in enumerate(clients, 1)]
    drafts, verdicts = cycle(drafting), cycle(accepted)
    for number in range(ROUNDS):
        now = 10.0 + number
        live = [(client, stream) for client, stream in zip(clients, streams, strict=True) if not stream.finished]
        for client, stream in live:
            if next(drafts):
                client.draft(stream)
        plan = scheduler.plan([stream for _, stream in live], now)
        check(plan, [stream for _, stream in live], scheduler)
        for share in plan.work:
            advance(share, accepted=next(verdicts), now=now)
        if plan.work:
            scheduler.stepped(plan.work, 0.001 * sum(len(share.block.tokens) for share in plan.work))


def test_a_budget_that_is_used_up_to_the_last_token() -> None:
    """Prompts, decoding and drafts in one step, each cut to what is left."""
    scheduler = scheduler_of(slope=0.0, prefill_chunk=40, step_tokens=64)
    decoding = [stream_of(slot, max_tokens=40) for slot in range(1, 5)]
    for stream in decoding:
        send(stream, *range(1, 13), confidences=(255,) * 12)
    plan = scheduler.plan([*decoding, stream_of(5, prompt=200)], now=10.0)
    assert sum(len(share.block.tokens) for share in plan.work) == 64
    assert [share.prompt_tokens for share in plan.work if share.prefill] == [40]
    assert sum(len(share.proposals) for share in plan.work) == 64 - 40 - 4
