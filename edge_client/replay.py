"""Plays a recorded trace through a controller, in simulated time: what speed would this network have given?

A discrete-event simulation with the product's own client side (:class:`~.generation.Generation` and the controller)
against a model of the verifier: it steps without pause under the latency policy, and waits for whole groups under the
cost policy. Token ids stand for right and wrong alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from ..protocol.acceptance import Proposal
from ..protocol.clock import clock_duration, clock_now
from ..protocol.messages import Commit, Draft
from ..protocol.path import Path
from .gamma.controller import Controller
from .generation import Generation, round_of

__all__ = ["Conditions", "Playing", "Replayed", "replay"]

_RIGHT, _WRONG = 1, 2
_BYTE_AFTER_WRONG = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Times in seconds: a one-token target step, what each further token adds, drafting a token, a one-way delay."""

    step: float
    draft: float
    delay: float
    per_token: float = 0.0
    waits: bool = False
    most_block: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay gave."""

    tokens: int
    seconds: float
    passes: int
    frames: int
    drafted: int


Playing: TypeAlias = Conditions | Callable[[float], Conditions]
"""Conditions that stay, or change with simulated time."""


def replay(right: Sequence[bool], confidences: Sequence[int], controller: Controller, conditions: Playing) -> Replayed:
    """Generate as many tokens as the trace has.

    Args:
        right: for each position, whether the draft proposes the target's token there, given a right prefix.
        confidences: the byte it gives.
        controller: fresh, or with what it has learnt.
        conditions: constant, or a function of simulated time.
    """
    return _Replay(right, confidences, controller, conditions if callable(conditions) else lambda _: conditions).run()


class _Replay:
    def __init__(
        self,
        right: Sequence[bool],
        confidences: Sequence[int],
        controller: Controller,
        conditions: Callable[[float], Conditions],
    ) -> None:
        self._right = right
        self._confidences = confidences
        self._controller = controller
        self._conditions = conditions
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._generation = Generation(stream=1, prompt_ids=[0], max_tokens=len(right), stop_ids=(), most_ahead=64)
        self._drafting = False
        self._verifier = _Verifier(right)
        self._stepping = False
        self._frames = self._passes = self._drafted = 0
        self._last_arrival = [0.0, 0.0]

    def run(self) -> Replayed:
        self._act()
        self._maybe_step()
        while not self._verifier.done and self._events:
            self._now, _, happen = heapq.heappop(self._events)
            happen()
        return Replayed(
            tokens=len(self._right),
            seconds=self._now,
            passes=self._passes,
            frames=self._frames,
            drafted=self._drafted,
        )

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), happen))

    def _carry(self, way: int, happen: Callable[[], None]) -> None:
        arrival = max(self._now + self._conditions(self._now).delay, self._last_arrival[way])
        self._last_arrival[way] = arrival
        self._at(arrival, happen)

    # --- the device ---------------------------------------------------------------------------------------------

    def _act(self) -> None:
        """Do what the controller says until it drafts or waits; does nothing while a token is being drafted."""
        while not self._drafting:
            decision = self._controller.decide(self._generation.outlook(self._now))
            if decision.send:
                self._send(continues=decision.continues)
            if decision.draft:
                self._draft()
            elif not decision.send:
                self._send(continues=False)  # only where more was promised
                if decision.rests:
                    self._carry_frame(self._generation.take_rest(sent_at=clock_now(self._now)))
                return

    def _send(self, *, continues: bool) -> None:
        self._carry_frame(self._generation.take_frame(sent_at=clock_now(self._now), continues=continues))

    def _carry_frame(self, frame: Draft | None) -> None:
        if frame is not None:
            self._frames += 1
            self._carry(0, lambda: self._arrive(frame))

    def _draft(self) -> None:
        self._drafting = True
        seconds, path = self._conditions(self._now).draft, self._generation.path
        self._at(self._now + seconds, lambda: self._drafted_one(path, seconds))

    def _drafted_one(self, path: Path, seconds: float) -> None:
        self._drafting = False
        self._drafted += 1
        index = path.end - 1
        on_track = index < len(self._right) and all(proposal.token == _RIGHT for proposal in path.proposals)
        token = _RIGHT if on_track and self._right[index] else _WRONG
        byte = self._confidences[index] if on_track else _BYTE_AFTER_WRONG
        self._controller.drafted(seconds)
        self._generation.add(path, Proposal(token), byte)
        self._act()

    def _hear(self, commit: Commit) -> None:
        committed = self._generation.apply(commit)
        self._controller.committed(round_of(commit, committed, now=self._now))
        self._act()

    # --- the verifier -------------------------------------------------------------------------------------------

    def _arrive(self, frame: Draft) -> None:
        self._verifier.take(frame, self._now)
        self._maybe_step()

    def _maybe_step(self) -> None:
        verifier, conditions = self._verifier, self._conditions(self._now)
        if self._stepping or verifier.done:
            return
        if conditions.waits and not verifier.ready(conditions.most_block):
            return
        self._stepping = True
        self._passes += 1
        block = verifier.begin(conditions.most_block)
        seconds = conditions.step + conditions.per_token * block
        began = self._now
        self._at(began + seconds, lambda: self._end_step(block, began))

    def _end_step(self, block: int, began: float) -> None:
        self._stepping = False
        commit = self._verifier.commit(block, began, self._now)
        self._carry(1, lambda: self._hear(commit))
        self._maybe_step()


class _Verifier:
    """The path it holds, and what is committed: the first token of the sequence is the prompt."""

    def __init__(self, right: Sequence[bool]) -> None:
        self._total = len(right) + 1
        self._right = right
        self.length = 1
        self._path, self._start, self._tokens = 0, 1, list[int]()
        self._alive = False
        self._continues = False
        self._rests = False
        self._echo: tuple[int, float] | None = None
        self._step_echo: tuple[int, float] | None = None

    @property
    def done(self) -> bool:
        return self.length >= self._total

    @property
    def _held(self) -> int:
        return self._start + len(self._tokens) - self.length if self._alive else 0

    def take(self, frame: Draft, now: float) -> None:
        if frame.path > self._path:
            self._path, self._start, self._tokens, self._alive = frame.path, frame.start, [], True
        if frame.path == self._path and self._alive:
            self._tokens.extend(frame.token_ids)
            self._settle()
        self._continues = frame.continues
        self._rests = not frame.continues and not frame.token_ids
        self._echo = (frame.sent_at, now)

    def _settle(self) -> None:
        """What is committed is right by definition, so a wrong token within it ends the path."""
        if _WRONG in self._tokens[: max(0, self.length - self._start)]:
            self._alive = False

    def ready(self, most: int) -> bool:
        left = self._total - self.length - 1
        return left == 0 or self._rests or (self._held > 0 and (not self._continues or self._held >= min(most, left)))

    def begin(self, most: int) -> int:
        self._step_echo, self._echo = self._echo, None
        return max(0, min(self._held, most, self._total - self.length - 1))

    def commit(self, block: int, began: float, ended: float) -> Commit:
        offset = self.length - self._start
        accepted = 0
        while accepted < block and self._tokens[offset + accepted] == _RIGHT:
            accepted += 1
        self.length += accepted + 1
        # The token itself is the target's: the device compares it with what it drafted there.
        alive_before = self._alive
        self._settle()
        if accepted < block:
            self._alive = False
        echo = self._step_echo
        return Commit(
            stream=1,
            path=self._path,
            accepted=accepted if alive_before else 0,
            token=_RIGHT,
            echo=echo[0] if echo else None,
            queued=clock_duration(began - echo[1]) if echo else 0,
            computed=clock_duration(ended - began),
        )
