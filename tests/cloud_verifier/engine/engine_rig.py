"""An engine over a table target, a device that talks to it, and decoding by the target alone to compare with."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import Observer, StepReport
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Target
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.messages import (
    Commit,
    Draft,
    End,
    Error,
    Limits,
    Message,
    Open,
    Prefix,
)
from draftwire.protocol.noise import Domain, coupled_choice, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, greedy_token, probabilities, process_logits

V = 40
LIMITS = Limits(max_context=2000, max_streams=4, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
GREEDY, COUPLED = SamplingParams(), SamplingParams(temperature=0.9)
REJECTION = SamplingParams(temperature=0.9, mode="rejection")
PENALIZED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2, frequency_penalty=0.3)
PROMPT = (5, 9, 14, 3)
SERVICE = ("observer", "speculation", "most_waiting", "wait_seconds", "prefix_tokens", "share_prefixes")
"""Options of the engine; all others are the scheduler's."""


class Device(Owner):
    """Owner of streams: expands COMMIT frames into tokens as a client does, and remembers what it sent."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.messages: list[Message] = []
        self.sequences: dict[int, list[int]] = {}
        self.ended: dict[int, End | Error] = {}
        self._prompts: dict[int, int] = {}
        self._sent: dict[tuple[int, int], dict[int, int]] = {}

    def open(self, stream: int = 1, prompt: Sequence[int] = PROMPT, **options: Any) -> None:
        defaults: dict[str, Any] = {"params": GREEDY, "max_tokens": 20, "seed": 7, "drafting": True}
        known: list[int] = []
        prefix: Prefix | None = options.get("prefix")
        if prefix is not None:
            known = self.sequences.get(prefix.stream, [])[: prefix.length]
        skipped = prefix.length if prefix is not None else 0
        request = Open(
            stream=stream,
            token_ids=tuple(prompt),
            **{"prompt_length": skipped + len(prompt), **defaults, **options},
        )
        self.sequences[stream] = [*known, *prompt]
        self._prompts[stream] = len(self.sequences[stream])
        self.engine.open(self, request)

    def draft(self, start: int, tokens: Sequence[int], *, stream: int = 1, path: int = 1, **options: Any) -> None:
        sent = self._sent.setdefault((stream, path), {})
        sent.update({start + offset: token for offset, token in enumerate(tokens)})
        confidences = () if options.get("sparse_q") is not None else (0,) * len(tokens)
        self.engine.draft(
            self,
            Draft(
                stream=stream,
                path=path,
                start=start,
                token_ids=tuple(tokens),
                confidences=confidences,
                **{"sent_at": 0, **options},
            ),
        )

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            if isinstance(message, Commit):
                assert message.stream not in self.ended
                sequence = self.sequences[message.stream]
                for _ in range(message.accepted):
                    sequence.append(self._sent[message.stream, message.path][len(sequence)])
                if message.token is not None:
                    sequence.append(message.token)
            elif isinstance(message, End | Error):
                assert message.stream not in self.ended
                self.ended[message.stream] = message

    def answer(self, stream: int = 1) -> list[int]:
        return self.sequences[stream][self._prompts[stream] :]

    def commits(self, stream: int = 1) -> list[Commit]:
        return [message for message in self.messages if isinstance(message, Commit) and message.stream == stream]

    def end(self, stream: int = 1) -> End:
        end = self.ended[stream]
        assert isinstance(end, End), end
        return end

    def error(self, stream: int = 1) -> Error:
        error = self.ended[stream]
        assert isinstance(error, Error), error
        return error


def make(target: TableTarget | None = None, **options: Any) -> tuple[Engine, Device]:
    target = target or TableTarget(vocabulary_size=V, seed=3)
    limits = options.pop("limits", LIMITS)
    service = {name: options.pop(name) for name in SERVICE if name in options}
    engine = Engine(target, limits=limits, scheduler=Scheduler(**options), **service)
    return engine, Device(engine)


def step(engine: Engine) -> float | None:
    """One step, and what must hold after every one."""
    idle_until = engine.step()
    target = engine._target
    held = set()
    for stream in engine._roster:
        assert stream.cached < len(stream.sequence)
        if stream.slot is not None:
            held.add(stream.slot)
            assert target._tokens[stream.slot] == stream.sequence[: stream.cached]  # type: ignore[attr-defined]
    assert set(target._tokens) == held  # type: ignore[attr-defined]
    assert target._saved == engine._roster.prefixes.tokens  # type: ignore[attr-defined]
    return idle_until


def finish(engine: Engine, each: Callable[[], None] = lambda: None) -> None:
    step(engine)
    for _ in range(3000):
        if not engine.active_streams:
            return
        each()
        step(engine)
    raise AssertionError("the streams do not end")


def alone(
    params: SamplingParams = GREEDY, count: int = 20, *, prompt: Sequence[int] = PROMPT, seed: int = 7
) -> list[int]:
    """Target-only decoding, one token at a time, written without the engine."""
    target, sequence = TableTarget(vocabulary_size=V, seed=3), list(prompt)
    for position in range(len(prompt), len(prompt) + count):
        history = TokenHistory(prompt, sequence[len(prompt) :])
        logits = target.logits_after(sequence)
        if params.greedy:
            sequence.append(greedy_token(logits, params, history))
        elif params.mode == "coupled":
            sequence.append(coupled_choice(process_logits(logits, params, history), seed, position))
        else:
            p = probabilities(process_logits(logits, params, history))
            u = uniform(seed, position, Domain.BONUS)
            sequence.append(int(np.argmax(np.cumsum(p) > u * np.cumsum(p)[-1])))
    return sequence[len(prompt) :]


MODES = pytest.mark.parametrize("params", [GREEDY, COUPLED, PENALIZED], ids=["greedy", "coupled", "penalized"])


class MemoryWatch(Observer):
    """Notes who gave a place up, and how much memory was ever held."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.preempted_at: list[int] = []
        """Tokens that each had committed by then."""
        self.most_bytes = 0

    def preempted(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        self.preempted_at.append(stream.counters.committed)
        self._look()

    def stepped(self, report: StepReport) -> None:
        """See :class:`Observer`."""
        del report
        self._look()

    def _look(self) -> None:
        self.most_bytes = max(self.most_bytes, self._target.kv_bytes)


class Crowd:
    """Streams for any target: what each says alone, and what they say together.

    Args:
        prompts: of the streams, which count from 1; by turns they are greedy, coupled and penalized.
        tokens: of each answer.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], *, tokens: int) -> None:
        self._prompts = prompts
        self._tokens = tokens
        self._limits = replace(LIMITS, max_context=1024, max_streams=len(prompts), max_backlog=64)

    def alone(self, target: Target) -> dict[int, list[int]]:
        """Answers of the streams one after another, without drafts and without known prefixes."""
        answers = {}
        for stream in range(1, len(self._prompts) + 1):
            engine, device = self._engine(target, prefix_tokens=0)
            self._open(device, stream)
            engine.step()
            while engine.active_streams:
                engine.step()
            answers[stream] = device.answer(stream)
            assert len(answers[stream]) == self._tokens
        return answers

    def together(
        self, target: Target, *, drafts: dict[int, list[int]] | None = None, **options: Any
    ) -> tuple[Device, MemoryWatch]:
        """All at once. Of ``drafts``, which are answers, parts come at random, with a wrong token here and there."""
        watch = MemoryWatch(target)
        engine, device = self._engine(target, observer=watch, **options)
        for stream in range(1, len(self._prompts) + 1):
            self._open(device, stream)
        paths, random_ = dict.fromkeys(drafts or {}, 0), random.Random(1)
        engine.step()
        while engine.active_streams:
            for stream, text in (drafts or {}).items():
                at = len(device.answer(stream))
                if stream in device.ended or not 0 < at < self._tokens - 1 or random_.random() < 0.3:
                    continue
                paths[stream] += 1
                ahead = [token if random_.random() < 0.85 else token ^ 1 for token in text[at : at + 4]]
                device.draft(len(device.sequences[stream]), ahead, stream=stream, path=paths[stream])
            engine.step()
        return device, watch

    def _engine(self, target: Target, **options: Any) -> tuple[Engine, Device]:
        engine = Engine(target, limits=self._limits, most_waiting=len(self._prompts), wait_seconds=600.0, **options)
        return engine, Device(engine)

    def _open(self, device: Device, stream: int) -> None:
        params = (GREEDY, COUPLED, PENALIZED)[stream % 3]
        prompt = self._prompts[stream - 1]
        device.open(stream, prompt=prompt, params=params, max_tokens=self._tokens, seed=stream)


def float32_target(folder: Path, *, kv_memory: int | None = None) -> TransformersTarget:
    """A model on one thread, with so many bytes for keys and values; None for whatever there is."""
    return TransformersTarget.load(str(folder), dtype="float32", threads=1, kv_memory=kv_memory)


def with_memory_for(tokens: int | None, roomy: TransformersTarget, folder: Path) -> TransformersTarget:
    """The model in ``folder`` with room for so many tokens; ``roomy``, which is loaded, for whatever there is."""
    return roomy if tokens is None else float32_target(folder, kv_memory=tokens * roomy._cache.token_bytes)
