"""Drafts in any order against decoding by the target alone."""

from __future__ import annotations

from draftwire.protocol.sampling import SamplingParams
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .engine_rig import COUPLED, GREEDY, LIMITS, PENALIZED, PROMPT, V, alone, finish, make, step


class AnyOrder(RuleBasedStateMachine):
    """Drafts right and wrong, late, stale and repeated, between steps: committed is what the target alone decodes."""

    COUNT = 40

    @initialize(
        params=st.sampled_from([GREEDY, COUPLED, PENALIZED]),
        max_block=st.sampled_from([1, 3, 16]),
        prefill_chunk=st.sampled_from([1, 2, 64]),
        max_tokens=st.integers(1, COUNT),
        stop=st.integers(0, V - 1),
    )
    def begin(self, params: SamplingParams, max_block: int, prefill_chunk: int, max_tokens: int, stop: int) -> None:
        self.engine, self.device = make(max_block=max_block, prefill_chunk=prefill_chunk)
        self.expected = alone(params, self.COUNT)
        length = min(max_tokens, self.expected.index(stop) + 1 if stop in self.expected else max_tokens)
        self.answer = self.expected[:length]
        self.device.open(params=params, max_tokens=max_tokens, stop_ids=(stop,))
        self.path, self.path_end = 0, 0

    def committed(self) -> int:
        return len(PROMPT) + len(self.device.answer())

    def right(self, start: int, count: int) -> list[int]:
        at = start - len(PROMPT)
        return [*PROMPT, *self.expected][start : start + count] if at >= -len(PROMPT) else []

    def send(self, start: int, tokens: list[int]) -> None:
        self.device.draft(start, tokens, path=self.path, continues=bool(tokens))
        self.path_end = start + len(tokens)

    @rule(back=st.integers(0, 4), count=st.integers(0, 6), wrong=st.none() | st.integers(0, 5))
    def new_path(self, back: int, count: int, wrong: int | None) -> None:
        start = max(1, self.committed() - back)
        self.path += 1
        self.send(start, self.spoil(self.right(start, count), wrong))

    @precondition(lambda self: self.path > 0)
    @rule(count=st.integers(0, 5), wrong=st.none() | st.integers(0, 5))
    def go_on(self, count: int, wrong: int | None) -> None:
        count = min(count, self.committed() + LIMITS.max_backlog - self.path_end)
        self.send(self.path_end, self.spoil(self.right(self.path_end, max(0, count)), wrong))

    @precondition(lambda self: self.path > 1)
    @rule(start=st.integers(1, 60), token=st.integers(0, V - 1))
    def stale(self, start: int, token: int) -> None:
        self.device.draft(start, [token], path=self.path - 1)

    @staticmethod
    def spoil(tokens: list[int], wrong: int | None) -> list[int]:
        if wrong is not None and wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % V
        return tokens

    @rule(times=st.integers(1, 4))
    def steps(self, times: int) -> None:
        for _ in range(times):
            step(self.engine)

    @invariant()
    def what_is_committed_is_the_targets(self) -> None:
        answer = self.device.answer()
        assert answer == self.answer[: len(answer)]

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            finish(self.engine)
            assert self.device.answer() == self.answer
            assert self.device.end().committed_tokens == len(self.answer)
            assert self.device.end().accepted_tokens <= self.device.end().drafted_tokens


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
