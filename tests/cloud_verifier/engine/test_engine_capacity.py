"""An engine with more to do than it has places or memory for: who waits, who gives way, and that no text changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.observer import CommitReport, Observer
from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import Limits, Opened
from draftwire.protocol.sampling import SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st

from .engine_rig import COUPLED, GREEDY, MODES, PROMPT, Device, V, alone, finish, make, step

ONE_PLACE = Limits(max_context=2000, max_streams=1, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)


def table(budget: int | None = None) -> TableTarget:
    return TableTarget(vocabulary_size=V, seed=3, kv_budget=budget)


def opened(device: Device) -> list[int]:
    return [message.stream for message in device.messages if isinstance(message, Opened)]


class Watch(Observer):
    def __init__(self) -> None:
        self.preemptions = 0
        self.outcomes: list[str] = []
        self.refusals: list[str] = []
        self.reports: list[CommitReport] = []

    def preempted(self, stream: VerifierStream) -> None:
        assert stream.slot is None
        self.preemptions += 1

    def ended(self, stream: VerifierStream, outcome: str) -> None:  # noqa: ARG002
        self.outcomes.append(outcome)

    def refused(self, owner: Any, code: str) -> None:  # noqa: ARG002
        self.refusals.append(code)

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:  # noqa: ARG002
        self.reports.append(report)


# --- the line -------------------------------------------------------------------------------------------------------


def test_streams_wait_for_a_place_and_get_one_in_their_order() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=2)
    for stream in (1, 2, 3):
        device.open(stream)
    step(engine)
    assert opened(device) == [1]
    assert (engine.gauges().running, engine.gauges().waiting) == (1, 2)
    finish(engine)
    assert opened(device) == [1, 2, 3]
    assert [device.answer(stream) for stream in (1, 2, 3)] == [alone()] * 3


def test_a_full_line_is_busy_at_once_and_says_when_to_come_back() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=1)
    for stream in (1, 2, 3):
        device.open(stream)
    step(engine)
    error = device.error(3)
    assert error.code is ErrorCode.BUSY
    assert error.retry_after_ms is not None
    assert error.retry_after_ms >= 1000
    assert "the one stream is in use" in error.message
    finish(engine)
    assert device.answer(2) == alone()


def test_patience_ends_and_the_place_is_told_busy() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=1, wait_seconds=0.0)
    device.open(1)
    device.open(2)
    step(engine)
    assert device.error(2).code is ErrorCode.BUSY
    finish(engine)
    assert device.answer(1) == alone()


def test_drafts_that_come_while_a_stream_waits_are_used() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=1)
    device.open(1)
    device.open(2)
    step(engine)
    expected = alone()
    device.draft(len(PROMPT), expected[:6], stream=2)
    finish(engine)
    assert device.answer(2) == expected
    assert device.end(2).accepted_tokens == 6


def test_who_leaves_while_waiting_is_out_of_the_line_within_a_step() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=3)
    gone, other = Device(engine), Device(engine)
    device.open(1)
    gone.open(1)
    other.open(1)
    step(engine)
    engine.drop(gone)
    engine.cancel(other, 1)
    step(engine)
    assert engine.gauges().waiting == 0
    assert other.end().committed_tokens == 0
    finish(engine)
    assert gone.messages == []


def test_a_tenant_has_its_share_and_the_next_gets_the_place() -> None:
    engine, device = make(most_waiting=8)
    device.tenant = Tenant(name="small", max_streams=1)
    other = Device(engine)
    other.tenant = Tenant(name="other")
    for stream in (1, 2, 3):
        device.open(stream)
    other.open(1)
    step(engine)
    assert opened(device) == [1]
    assert opened(other) == [1]
    finish(engine)
    assert opened(device) == [1, 2, 3]


def test_where_nobody_has_a_name_a_client_with_one_stream_is_not_crowded_out_by_those_with_many() -> None:
    engine, hog = make(limits=replace(ONE_PLACE, max_streams=2), most_waiting=4)
    other_hog, modest = Device(engine), Device(engine)
    hog.open(1)
    hog.open(2, max_tokens=500)
    for stream in (3, 4):
        hog.open(stream)
        other_hog.open(stream)
    modest.open(9)
    step(engine)
    assert other_hog.error(4).code is ErrorCode.BUSY  # the newest of who has most in line
    while 1 not in hog.ended:
        step(engine)
    while not opened(modest):
        step(engine)
    assert opened(hog) == [1, 2]
    finish(engine)
    assert modest.answer(9) == alone()


def test_shutting_down_tells_those_that_wait_too() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=3)
    device.open(1)
    device.open(2)
    step(engine)
    engine.stop()
    assert [device.error(stream).code for stream in (1, 2)] == [ErrorCode.SHUTTING_DOWN] * 2


def test_draining_lets_what_runs_finish_and_takes_nothing_new() -> None:
    engine, device = make(limits=ONE_PLACE, most_waiting=3)
    device.open(1)
    device.open(2)
    step(engine)
    engine.drain()
    device.open(3)
    finish(engine)
    assert device.error(3).code is ErrorCode.SHUTTING_DOWN
    assert device.answer(1) == device.answer(2) == alone()


# --- memory ---------------------------------------------------------------------------------------------------------


@MODES
def test_memory_that_runs_out_makes_the_last_wait_and_changes_no_text(params: SamplingParams) -> None:
    watch = Watch()
    engine, device = make(table(budget=220), observer=watch)
    for stream in (1, 2, 3):
        device.open(stream, params=params, max_tokens=100)
    finish(engine)
    assert watch.preemptions > 0
    assert watch.outcomes == ["length"] * 3
    assert [device.answer(stream) for stream in (1, 2, 3)] == [alone(params, 100)] * 3
    assert opened(device) == [1, 2, 3]


def test_who_came_first_never_gives_way_to_who_came_later() -> None:
    watch = Watch()
    engine, device = make(table(budget=150), observer=watch)
    for stream in (1, 2):
        device.open(stream, max_tokens=100)
    step(engine)
    order = []
    while engine.active_streams:
        step(engine)
        order.append([stream for stream in (1, 2) if stream in device.ended])
    assert order[-2] == [1]
    assert watch.preemptions == 1


def test_drafts_of_a_stream_that_gave_way_are_used_when_it_is_back() -> None:
    watch = Watch()
    expected = alone(COUPLED, 100)
    engine, device = make(table(budget=150), observer=watch)
    device.open(1, max_tokens=100)
    device.open(2, params=COUPLED, max_tokens=100)
    ahead = len(PROMPT)

    def draft() -> None:
        nonlocal ahead
        for stream in engine._roster:
            if stream.request.stream == 2 and ahead < len(stream.sequence) + 6 and ahead < len(PROMPT) + 99:
                device.draft(ahead, expected[ahead - len(PROMPT) : ahead - len(PROMPT) + 2], stream=2)
                ahead += 2

    finish(engine, draft)
    assert device.answer(2) == expected
    assert device.answer(1) == alone(GREEDY, 100)
    assert device.end(2).accepted_tokens > 5
    assert watch.preemptions > 0


def test_prefixes_go_before_anybody_has_to_wait() -> None:
    watch = Watch()
    engine, device = make(table(budget=100), observer=watch)
    device.open(1, max_tokens=60)
    finish(engine)
    assert engine.gauges().prefix_tokens > 0
    device.open(2, max_tokens=90, prompt=(8, 8))
    finish(engine)
    assert watch.preemptions == 0
    assert device.answer(2) == alone(GREEDY, 90, prompt=(8, 8))


def test_kv_memory_never_exceeds_its_budget() -> None:
    engine, device = make(table(budget=90))
    for stream in range(1, 9):
        device.open(stream, max_tokens=30, prompt=[stream] * 20)
        step(engine)
        gauges = engine.gauges()
        assert gauges.kv_total_bytes == 90
        assert gauges.kv_used_bytes <= 90


@settings(deadline=None, max_examples=40)
@given(
    budget=st.integers(120, 300),
    places=st.integers(1, 4),
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    tokens=st.integers(1, 90),
    seed=st.integers(0, 3),
)
def test_whatever_runs_out_every_text_is_that_of_a_stream_alone(
    budget: int, places: int, prompts: list[int], tokens: int, seed: int
) -> None:
    limits = Limits(max_context=2000, max_streams=places, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
    engine, device = make(table(budget), limits=limits, most_waiting=10)
    texts = [[(7 * index + offset) % V for offset in range(length)] for index, length in enumerate(prompts)]
    for stream, prompt in enumerate(texts, start=1):
        device.open(stream, prompt=prompt, params=COUPLED, max_tokens=tokens, seed=seed)
    finish(engine)
    for stream, prompt in enumerate(texts, start=1):
        assert device.answer(stream) == alone(COUPLED, tokens, prompt=prompt, seed=seed)


# --- prefixes -------------------------------------------------------------------------------------------------------


def test_a_prompt_seen_before_is_not_computed_again_and_the_text_is_the_same() -> None:
    prompt = [(3 * index) % V for index in range(40)]
    engine, device = make()
    device.open(1, prompt=prompt, drafting=False)
    finish(engine)
    cold = engine.counters.steps
    other = Device(engine)
    other.open(1, prompt=[*prompt, 5], drafting=False)
    step(engine)
    (first,) = [message for message in other.messages if isinstance(message, Opened)]
    assert first.cached == 40 // BLOCK_TOKENS * BLOCK_TOKENS
    finish(engine)
    assert engine.counters.steps == 2 * cold
    assert other.answer() == alone(prompt=[*prompt, 5])
    assert (engine.gauges().prefix_queried, engine.gauges().prefix_found) == (81, first.cached)


def test_a_prompt_is_known_to_others_as_soon_as_it_is_read() -> None:
    prompt = [(5 * index) % V for index in range(33)]
    engine, device = make()
    device.open(1, prompt=prompt, max_tokens=500)
    step(engine)
    other = Device(engine)
    other.open(1, prompt=prompt)
    step(engine)
    (first,) = [message for message in other.messages if isinstance(message, Opened)]
    assert first.cached == 2 * BLOCK_TOKENS


def test_tenants_do_not_learn_from_response_times_what_others_asked() -> None:
    prompt = [(5 * index) % V for index in range(33)]
    for share, expected in ((False, 0), (True, 2 * BLOCK_TOKENS)):
        engine, device = make(share_prefixes=share)
        device.tenant = Tenant(name="one")
        device.open(1, prompt=prompt)
        finish(engine)
        other = Device(engine)
        other.tenant = Tenant(name="two")
        other.open(1, prompt=prompt)
        step(engine)
        (first,) = [message for message in other.messages if isinstance(message, Opened)]
        assert first.cached == expected


def test_what_a_failed_stream_computed_is_not_kept() -> None:
    engine, device = make()
    device.open(1, prompt=[3] * 40)
    step(engine)
    engine._roster.prefixes.clear()
    engine._stepper._target.step = broken  # type: ignore[method-assign]
    step(engine)
    assert device.error().code is ErrorCode.INTERNAL
    assert engine.gauges().prefix_tokens == 0


def broken(blocks: object) -> Any:
    raise RuntimeError(f"no step over {blocks}")


# --- what becomes of drafts -----------------------------------------------------------------------------------------


@MODES
@pytest.mark.parametrize("speculation", [Speculation.OFF, Speculation.SHADOW])
def test_without_speculation_the_answer_is_plain(params: SamplingParams, speculation: Speculation) -> None:
    watch = Watch()
    engine, device = make(speculation=lambda *_: speculation, observer=watch)
    expected = alone(params)
    device.open(params=params)
    ahead = len(PROMPT)

    def draft() -> None:
        nonlocal ahead
        if ahead < len(PROMPT) + 19 and not params.by_rejection:
            device.draft(ahead, expected[ahead - len(PROMPT) : ahead - len(PROMPT) + 1])
            ahead += 1

    for _ in range(5):
        draft()
    finish(engine, draft)
    assert device.answer() == expected
    assert all(commit.accepted == 0 for commit in device.commits())
    assert [report.committed for report in watch.reports] == [1] * 20
    assert device.end().target_passes == 20
    verified = sum(report.drafted for report in watch.reports)
    assert device.end().drafted_tokens == verified
    if speculation is Speculation.OFF:
        assert verified == 0
    elif not params.by_rejection:
        assert (
            sum(report.accepted for report in watch.reports) == verified > 20
        )  # a token is verified while it is ahead
