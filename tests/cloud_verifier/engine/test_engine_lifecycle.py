"""How streams begin, wait, end and leave something behind; and the thread they live in."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS
from draftwire.cloud_verifier.engine.scheduler import RunAhead
from draftwire.cloud_verifier.engine.stream import Owner
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import (
    Commit,
    End,
    EndReason,
    Error,
    Message,
    Open,
    Opened,
    Policy,
    Prefix,
)
from draftwire.protocol.sampling import SamplingParams
from numpy.typing import NDArray

from .engine_rig import GREEDY, LIMITS, MODES, PROMPT, Device, V, alone, finish, make, step

# --- leaving, and coming back ------------------------------------------------------------------------------------


def test_cancel_ends_at_once() -> None:
    engine, device = make()
    device.open(max_tokens=1000)
    step(engine)
    step(engine)
    engine.cancel(device, 1)
    device.draft(6, [1])
    step(engine)
    end = device.end()
    assert (end.reason, end.committed_tokens) == (EndReason.CANCELLED, 2)
    assert device.answer() == alone(GREEDY, 2)
    assert engine.active_streams == 0


def test_an_owner_that_left_hears_nothing_and_leaves_nothing() -> None:
    engine, device = make()
    other = Device(engine)
    device.open(1, retain=True, max_tokens=1)
    finish(engine)
    device.open(2)
    other.open(1)
    step(engine)
    heard = len(device.messages)
    engine.drop(device)
    finish(engine)
    assert len(device.messages) == heard
    assert not len(engine._lifecycle._retained)
    assert other.answer() == alone()
    assert engine._target._tokens == {}  # type: ignore[attr-defined]


def test_a_stream_that_broke_the_protocol_is_dropped_without_a_word() -> None:
    engine, device = make()
    device.open()
    step(engine)
    heard = len(device.messages)
    engine.fail(device, Error(stream=1, code=ErrorCode.MALFORMED_FRAME))
    step(engine)
    assert len(device.messages) == heard
    assert engine.active_streams == 0


@MODES
@pytest.mark.parametrize("shorter", [0, 1, 5])
def test_a_later_turn_over_a_kept_prefix_equals_the_whole_prompt(params: SamplingParams, shorter: int) -> None:
    engine, device = make()
    device.open(1, params=params, retain=True, max_tokens=12 + 16)
    finish(engine)
    length = len(device.sequences[1]) - shorter
    whole = [*device.sequences[1][:length], 7, 8]
    device.open(2, prompt=(7, 8), prefix=Prefix(stream=1, length=length), params=params)
    finish(engine)
    assert device.answer(2) == alone(params, prompt=whole)
    (opened,) = [message for message in device.messages if isinstance(message, Opened) and message.stream == 2]
    computed = min(length, len(PROMPT) + 27)  # the last committed token never was
    assert opened.cached == computed // BLOCK_TOKENS * BLOCK_TOKENS
    assert device.end(2).prompt_tokens == len(whole)


def test_a_cancelled_stream_is_not_kept() -> None:
    engine, device = make()
    device.open(1, retain=True)
    step(engine)
    engine.cancel(device, 1)
    step(engine)
    assert engine._target._tokens == {}  # type: ignore[attr-defined]
    device.open(2, prompt=(7,), prefix=Prefix(stream=1, length=5))
    finish(engine)
    assert device.error(2).code is ErrorCode.UNKNOWN_PREFIX


def test_an_owner_keeps_the_newest_stream_alone() -> None:
    engine, device = make()
    for stream in (1, 2, 3):
        device.open(stream, max_tokens=1, retain=True)
        finish(engine)
        assert len(engine._lifecycle._retained) == 1
    for stream, prefix in ((4, 2), (5, 3)):
        device.open(stream, prompt=(1,), prefix=Prefix(stream=prefix, length=5))
        finish(engine)
    assert device.error(4).code is ErrorCode.UNKNOWN_PREFIX
    assert device.answer(5) == alone(prompt=[*device.sequences[3][:5], 1])


def test_a_prefix_nobody_holds_is_refused() -> None:
    engine, device = make()
    other = Device(engine)
    device.open(1, max_tokens=1)
    device.open(2, max_tokens=1, retain=True)
    other.open(1, max_tokens=1, retain=True)
    finish(engine)
    device.open(3, prompt=(1,), prefix=Prefix(stream=1, length=2))  # was not to be kept
    device.open(4, prompt=(1,), prefix=Prefix(stream=2, length=6))  # longer than the stream was
    device.open(5, prompt=(1,), prefix=Prefix(stream=2, length=5))
    device.open(6, prompt=(2,), prefix=Prefix(stream=2, length=5))  # a second branch
    finish(engine)
    assert [device.error(stream).code for stream in (3, 4)] == [ErrorCode.UNKNOWN_PREFIX] * 2
    assert device.answer(5) == alone(prompt=[*device.sequences[2][:5], 1])
    assert device.answer(6) == alone(prompt=[*device.sequences[2][:5], 2])


def test_what_is_kept_for_owners_is_bounded() -> None:
    engine, _ = make()
    owners = [Device(engine) for _ in range(4 * LIMITS.max_streams + 2)]
    for owner in owners:
        owner.open(max_tokens=1, retain=True)
        finish(engine)
    retained = engine._lifecycle._retained
    assert [owner in retained for owner in owners] == [False] * 2 + [True] * 4 * LIMITS.max_streams


def test_a_prefix_survives_an_open_that_the_target_refuses() -> None:
    class Full(TableTarget):
        full = False

        def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
            if self.full:
                self.full = False
                super().open(-1, 0)  # raises InvalidParameterError as a target does
            super().open(stream, capacity, room=room)

    target = Full(vocabulary_size=V, seed=3)
    engine, device = make(target)
    device.open(1, max_tokens=3, retain=True)
    finish(engine)
    target.full = True
    device.open(2, prompt=(1,), prefix=Prefix(stream=1, length=6))
    step(engine)
    assert device.error(2).code is ErrorCode.INVALID_PARAMETER
    device.open(3, prompt=(1,), prefix=Prefix(stream=1, length=6))
    finish(engine)
    assert device.answer(3) == alone(prompt=[*device.sequences[1][:6], 1])


# --- refusals ----------------------------------------------------------------------------------------------------


def test_over_the_limit_is_busy() -> None:
    engine, device = make()
    for stream in range(1, 6):
        device.open(stream)
    step(engine)
    error = device.error(5)
    assert (error.code, error.retry_after_ms) == (ErrorCode.BUSY, 1000)
    finish(engine)
    assert all(device.answer(stream) == alone() for stream in range(1, 5))
    device.open(6)
    finish(engine)
    assert device.answer(6) == alone()


@pytest.mark.parametrize(
    ("options", "code", "names"),
    [
        ({"max_tokens": 1997}, ErrorCode.PROMPT_TOO_LONG, "2000"),
        ({"params": SamplingParams(logit_bias=((V, 1.0),))}, ErrorCode.INVALID_PARAMETER, "logit_bias"),
        ({"stop_ids": (1, V)}, ErrorCode.INVALID_PARAMETER, "stop_ids"),
    ],
)
def test_what_cannot_be_served_is_refused(options: dict[str, Any], code: ErrorCode, names: str) -> None:
    engine, device = make()
    device.open(1, **options)
    device.open(2)
    finish(engine)
    assert device.error(1).code is code
    assert names in device.error(1).message
    assert device.answer(2) == alone()


def test_the_longest_that_fits_is_served() -> None:
    engine, device = make()
    device.open(1, max_tokens=1996)
    step(engine)
    assert 1 not in device.ended


# --- waiting for drafts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run_ahead", "policy"), [(RunAhead.NEVER, Policy.LATENCY), (RunAhead.AUTO, Policy.COST)], ids=["never", "cost"]
)
def test_a_stream_that_waits_does_no_step_until_its_draft_comes(run_ahead: RunAhead, policy: Policy) -> None:
    engine, device = make(run_ahead=run_ahead)
    expected = alone(GREEDY, 20)
    device.open(policy=policy, prompt=PROMPT)
    assert step(engine) is None  # reads the prompt and commits its first token
    assert device.answer() == expected[:1]
    wake_at = step(engine)
    assert wake_at is not None
    assert engine.counters.steps == 1
    device.draft(5, expected[1:4])
    assert step(engine) is None
    assert device.answer() == expected[:5]


def test_patience_that_ends_makes_it_run_ahead() -> None:
    engine, device = make(run_ahead=RunAhead.NEVER)
    device.open()
    step(engine)
    (stream,) = engine._roster
    stream.waiting_since -= 10
    assert step(engine) is None
    assert device.answer() == alone(GREEDY, 2)


def test_an_idle_engine_may_sleep() -> None:
    engine, device = make()
    assert engine.step() is not None
    device.open(max_tokens=1)
    assert engine.step() is None
    assert engine.step() is not None


# --- the thread --------------------------------------------------------------------------------------------------


class Mailbox(Owner):
    def __init__(self) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.messages.put(message)

    def wait_for(self, kind: type[Message]) -> Message:
        while True:
            message = self.messages.get(timeout=30)
            if isinstance(message, kind):
                return message


def request_of(stream: int = 1, **options: Any) -> Open:
    defaults: dict[str, Any] = {"token_ids": PROMPT, "prompt_length": 4, "params": GREEDY, "max_tokens": 5, "seed": 0}
    return Open(stream=stream, **{**defaults, **options})


def test_the_thread_serves_and_stops() -> None:
    engine, _ = make(run_ahead=RunAhead.NEVER)
    box = Mailbox()
    engine.start()
    assert engine.running
    engine.open(box, request_of(1))
    assert isinstance(box.wait_for(End), End)
    engine.open(box, request_of(2, drafting=True, max_tokens=1000))
    box.wait_for(Commit)
    engine.stop()
    error = box.wait_for(Error)
    assert isinstance(error, Error)
    assert (error.stream, error.code) == (2, ErrorCode.SHUTTING_DOWN)
    assert not engine.running
    assert engine.active_streams == 0
    engine.stop()


def test_an_idle_engine_stops_at_once_however_the_threads_interleave() -> None:
    """``stop`` may come between the loop's look at the flag and its sleep; it must not sleep then."""
    engine, _ = make()
    steps = engine._step_safely

    def stop_meanwhile() -> float | None:
        idle_until = steps()
        engine._stopping = True
        engine._wake.set()
        engine._wake.clear()  # as the loop does when it begins its turn just after
        return idle_until

    engine._step_safely = stop_meanwhile  # type: ignore[method-assign]
    engine.start()
    engine._thread.join(timeout=30)
    assert not engine.running


def test_an_engine_never_started_can_be_stopped() -> None:
    engine, device = make()
    device.open()
    engine.stop()
    assert not engine.running
    assert device.error().code is ErrorCode.SHUTTING_DOWN


class Stuck(TableTarget):
    """Its first step does not end until ``release`` is set."""

    def __init__(self) -> None:
        super().__init__(vocabulary_size=V, seed=3)
        self.entered, self.release = threading.Event(), threading.Event()

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        self.entered.set()
        self.release.wait()
        return super().step(blocks)


def test_whoever_opens_around_a_stop_is_told() -> None:
    """Posted while the last step runs, and after the thread has ended."""
    target = Stuck()
    engine, _ = make(target)
    running, during, after = Mailbox(), Mailbox(), Mailbox()
    engine.start()
    engine.open(running, request_of(max_tokens=1000))
    assert target.entered.wait(30)
    engine.open(during, request_of())
    join = engine._thread.join

    def release_and_join(within: float) -> None:  # the stop has been asked for, and now the step ends
        target.release.set()
        join(within)

    engine._thread.join = release_and_join  # type: ignore[method-assign, assignment]
    engine.stop(within=30)
    assert not engine.running
    engine.open(after, request_of())
    for box in (running, during, after):
        error = box.wait_for(Error)
        assert isinstance(error, Error)
        assert (error.stream, error.code) == (1, ErrorCode.SHUTTING_DOWN)


def test_a_step_that_does_not_end_does_not_hold_up_a_stop() -> None:
    target = Stuck()
    engine, _ = make(target)
    running, during, after = Mailbox(), Mailbox(), Mailbox()
    engine.start()
    engine.open(running, request_of(max_tokens=1000))
    assert target.entered.wait(30)
    engine.open(during, request_of())
    engine.stop(within=0.01)
    engine.open(after, request_of())
    for box in (running, during, after):
        error = box.wait_for(Error)
        assert isinstance(error, Error)
        assert (error.stream, error.code) == (1, ErrorCode.SHUTTING_DOWN)
    assert engine.running
    target.release.set()
    engine._thread.join(30)
    assert not engine.running
