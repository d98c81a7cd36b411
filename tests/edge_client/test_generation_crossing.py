"""A device's generation and a verifier's stream together, whatever crosses on the way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.edge_client.generation import Generation
from draftwire.protocol.acceptance import Proposal, verify_block
from draftwire.protocol.messages import Commit, Draft, Message, Open
from draftwire.protocol.noise import Domain, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, process_logits
from draftwire.protocol.sparse_q import SparseQ
from hypothesis import given, settings
from hypothesis import strategies as st

PROMPT = (3, 4, 5)


class Nobody(Owner):
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


class Pair:
    """A Generation and a VerifierStream with two wires between them, on which frames wait as long as one likes."""

    def __init__(
        self, *, params: SamplingParams, table: int, max_tokens: int, stop_ids: tuple[int, ...], **sizes: int
    ) -> None:
        self.params, self.table, self.seed = params, table, table * 7 + 1
        request = Open(
            stream=1,
            token_ids=PROMPT,
            prompt_length=len(PROMPT),
            params=params,
            max_tokens=max_tokens,
            seed=self.seed,
            stop_ids=stop_ids,
            drafting=True,
        )
        self.client = Generation(
            stream=1,
            prompt_ids=PROMPT,
            max_tokens=max_tokens,
            stop_ids=stop_ids,
            most_ahead=sizes["look_ahead"],
            by_rejection=params.by_rejection,
        )
        self.verifier = VerifierStream(
            slot=1, owner=Nobody(), request=request, sequence=list(PROMPT), cached=0, opened_at=0.0
        )
        self.max_block, self.backlog = sizes["max_block"], sizes["look_ahead"]
        self.up: deque[Draft] = deque()
        self.down: deque[Commit] = deque()
        self.in_flight: Any = None

    def row(self, context: Sequence[int]) -> Any:
        return np.random.default_rng([self.table, *context[-2:]]).standard_normal(6)

    def propose(self, good: bool) -> None:
        """Begin a drafting step; it ends with :meth:`proposed`, and commits may come in between."""
        if self.in_flight is None and self.client.room:
            context = self.client.context()
            position = len(context)
            scores = process_logits(self.row(context), SamplingParams(temperature=1.0), TokenHistory())
            q = SparseQ.from_scores(scores if good else -scores, 4)
            token = q.sample(uniform(self.seed, position, Domain.DRAFT))
            if good and self.params.mode == "coupled":  # what the target will say itself
                history = TokenHistory(PROMPT, context[len(PROMPT) :])
                verdict = verify_block(
                    self.row(context)[None], [], params=self.params, history=history, seed=self.seed,
                    position=position, budget=1,
                )  # fmt: skip
                token = verdict.tokens[0]
            by_rejection = self.params.mode == "rejection" and not self.params.greedy
            self.in_flight = (self.client.path, Proposal(token, q if by_rejection else None))

    def proposed(self, send: bool) -> None:
        if self.in_flight is not None:
            self.client.add(*self.in_flight, 0)
            self.in_flight = None
        if send:
            self.transmit()

    def transmit(self) -> None:
        frame = self.client.take_frame(sent_at=0, continues=self.client.room > 0)
        if frame is not None:
            self.up.append(frame)

    def rest(self) -> None:
        frame = self.client.take_rest(sent_at=0)
        if frame is not None:
            self.up.append(frame)

    def arrive(self) -> None:
        if self.up and not self.verifier.finished:
            self.verifier.take_draft(self.up.popleft(), now=0.0, max_backlog=self.backlog)

    def step(self) -> None:
        stream = self.verifier
        if stream.finished:
            return
        work = stream.work(max_block=self.max_block, prefill_chunk=64)
        contexts = [stream.sequence + [p.token for p in work.proposals[:count]] for count in range(work.block.rows)]
        verdict = verify_block(
            np.stack([self.row(context) for context in contexts]),
            work.proposals,
            params=self.params,
            history=stream.history,
            seed=self.seed,
            position=len(stream.sequence),
            stop_ids=stream.request.stop_ids,
            budget=stream.remaining,
            withhold_bonus=stream.withholds_bonus(work.proposals),
        )
        self.down.append(stream.commit(verdict, work.proposals, started=0.0, ended=0.0))
        assert stream.cached < len(stream.sequence)

    def hear(self) -> None:
        if self.down:
            self.client.apply(self.down.popleft())


ACTIONS = st.lists(
    st.sampled_from(
        [*["good"] * 3, "bad", *["done"] * 2, "late", "send", "rest", "arrive", *["step"] * 2, *["hear"] * 2]
    ),
    max_size=120,
)


@settings(max_examples=300, deadline=None)
@given(
    actions=ACTIONS,
    params=st.sampled_from(
        [
            SamplingParams(),
            SamplingParams(temperature=1.0),
            SamplingParams(temperature=1.0, mode="rejection"),
            SamplingParams(temperature=1.0, repetition_penalty=1.5),
        ]
    ),
    table=st.integers(0, 50),
    max_tokens=st.integers(1, 40),
    stop_ids=st.sampled_from([(), (2,)]),
    look_ahead=st.integers(0, 8),
    max_block=st.sampled_from([1, 3, 16]),
)
def test_both_ends_agree_whatever_the_delays(actions: list[str], **options: Any) -> None:
    """No interleaving of drafting, sending, verifying and hearing makes one end see what the other does not."""
    pair = Pair(**options)
    for action in [*actions, *["good", "done", "arrive", "step", "hear"] * 60]:
        match action:
            case "good" | "bad":
                pair.propose(action == "good")
            case "done" | "late":
                pair.proposed(send=action == "done")
            case "send":
                pair.transmit()
            case "rest":
                pair.rest()
            case "arrive":
                pair.arrive()
            case "step":
                pair.step()
            case "hear":
                pair.hear()
        known = len(pair.client.sequence)
        assert pair.client.sequence == pair.verifier.sequence[:known]
        assert pair.client.path.end >= known
    while pair.down:
        pair.hear()
    assert pair.verifier.finished
    assert pair.client.sequence == pair.verifier.sequence
    assert len(pair.client.answer) <= options["max_tokens"]


def test_a_draft_that_is_always_right_is_always_of_use() -> None:
    """One path carries the whole answer, though commits come a round trip late."""
    params = SamplingParams(temperature=1.0)
    pair = Pair(params=params, table=3, max_tokens=60, stop_ids=(), look_ahead=8, max_block=16)
    used: set[int] = set()
    while not pair.verifier.finished:
        for _ in range(3):
            pair.propose(good=True)
            pair.proposed(send=True)
        used.update(frame.path for frame in pair.up)
        while len(pair.up) > 2:
            pair.arrive()
        pair.step()
        if len(pair.down) > 2:
            pair.hear()
    while pair.down:
        pair.hear()
    assert used == {1}
    assert pair.verifier.counters.accepted == pair.verifier.counters.drafted > 20
