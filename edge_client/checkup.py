"""A check-up: short sample answers with and without the draft, in turn, and everything that can be timed on the way.

Nothing here judges or prints. :class:`Checkup` fills up as it goes, so what was found before a failure is kept.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

from ..protocol.clock import CLOCK_UNIT
from ..protocol.errors import BundleError, InvalidParameterError
from ..protocol.manifest import Manifest
from ..protocol.messages import Welcome
from ..protocol.sampling import SamplingParams
from .client import AsyncEdgeClient
from .device import Device
from .events import Degraded, Finished, Result, RoundCompleted
from .forecast import DraftFault, DraftMeasured, Measured
from .onnx_runtime import default_threads
from .prompt import Prompt, Vocabulary
from .proposer import Proposer
from .stats import Stats

__all__ = ["SAMPLES", "Answer", "Checkup", "Sample"]

SAMPLES: dict[str, str] = {
    "chat": "Why is the sky blue? Explain it to a child.",
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
    "summary": "Summarize: The Romans built roads from stone and gravel so that armies could move fast. Traders soon "
    "used them too, and towns grew where they crossed. Many of today's roads still follow them.",
    "list": "List ten things to pack for a week in the mountains, each with a short reason.",
}
"""One of each kind: how often a draft is right depends on the text."""

_TOKENS, _TOKENS_QUICK, _TOKENS_LEAST = 32, 16, 8
_BUDGET, _BUDGET_QUICK = 14.0, 4.0
"""Seconds of target steps: with a slow target the answers are shorter."""

_QUICK_SAMPLES = 2
_WARM_UP = 4
_PINGS, _PINGS_LEAST, _PING_SECONDS = 20, 5, 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer: its token ids and counters; of each target step after the prompt's, seconds and tokens accepted."""

    token_ids: tuple[int, ...]
    stats: Stats
    steps: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt answered both ways. ``right`` is empty, and ``drafted`` None, without a draft.

    ``right`` says, token by token of the cloud-only answer, whether the device proposes that token after a right
    prefix.
    """

    task: str
    plain: Answer
    drafted: Answer | None
    right: tuple[bool, ...]

    @property
    def ratio(self) -> float | None:
        """Measured speed over cloud-only; None where there are no two speeds."""
        if self.drafted is None or not (rate := self.plain.stats.tokens_per_second):
            return None
        return self.drafted.stats.tokens_per_second / rate or None


@dataclass(slots=True, kw_only=True)
class Checkup:
    """One examination of a client; :meth:`run` fills it.

    Attributes:
        client: connected or not, with a draft or without one.
        drafting: a draft was given.
        threads: what the draft may use; None is the usual number.
        quick: fewer and shorter answers.
        say: told what is being done, in a few words.
        welcome, manifest: of verifier and draft, once known.
        fault, reason: why the draft that was given is not in use.
        pings: round trips in seconds.
        samples: prompts answered.
        steps_alone: seconds of drafting steps with the device to itself.
    """

    client: AsyncEdgeClient
    drafting: bool
    threads: int | None = None
    quick: bool = False
    say: Callable[[str], None] = lambda _: None
    welcome: Welcome | None = None
    manifest: Manifest | None = None
    fault: DraftFault | None = None
    reason: str | None = None
    pings: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    steps_alone: list[float] = field(default_factory=list)

    # --- measuring ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Measure everything.

        Raises:
            DraftwireError: the verifier cannot be used, or a generation failed. A draft that cannot be used is no
                failure: see ``fault``.
        """
        self.say("connecting")
        welcome = self.welcome = await self.client.connect()
        await self._ping()
        if self.drafting:
            self.say("loading the draft")
            await self._look_at_draft()
        names = list(SAMPLES)[: _QUICK_SAMPLES if self.quick else None]
        prompts = [await self._prompt(name, number, welcome) for number, name in enumerate(names)]
        tokens = await self._warm_up(prompts)
        for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            self.say(f"answering {number + 1} of {len(names)}: {name}")
            await self._sample(name, prompt, tokens, draft_first=number % 2 == 1, welcome=welcome)
        if self._device is not None and not any(sample.right for sample in self.samples):
            self._blame(self._device, "no sample fits the draft's context; export it with a longer one")

    async def _ping(self) -> None:
        self.pings.append(await self.client.ping())
        self.pings.clear()  # the first one finds cold caches
        while len(self.pings) < (_PINGS_LEAST if self.quick else _PINGS):
            self.pings.append(await self.client.ping())
            if len(self.pings) >= _PINGS_LEAST and sum(self.pings) > _PING_SECONDS:
                return

    async def _look_at_draft(self) -> None:
        status, device = await self.client.wait_for_draft(), self.client.device
        if device is not None:
            self.manifest = device.bundle.manifest
        if status.mode != "drafting":
            self._blame(device, status.reason or "the draft is not in use")

    def _blame(self, device: Device | None, reason: str) -> None:
        self.reason = reason
        if device is None or isinstance(device.fault, BundleError):
            self.fault = "unreadable"
        else:
            self.fault = "mismatch" if device.fault is None and not self.matches else "failing"

    @property
    def matches(self) -> bool:
        """Whether draft and target share a vocabulary, once both are known."""
        return (
            self.manifest is not None
            and self.welcome is not None
            and self.manifest.vocabulary.fingerprint == self.welcome.fingerprint.hex()
        )

    async def _prompt(self, name: str, number: int, welcome: Welcome) -> Prompt:
        """The sample in the best form that this model takes: not every one has a template, or a token for each letter.

        With a draft these are token ids, for the device to read as well.
        """
        text = SAMPLES[name]
        for prompt in ([{"role": "user", "content": text}], text):
            try:
                if self._device is not None:
                    bundle = self._device.bundle
                    return Vocabulary(bundle.tokenizer, bundle.chat_template).encode(
                        prompt, size=welcome.vocabulary_size
                    )
                await self.client.generate(prompt, max_tokens=1, look_ahead=0)
            except InvalidParameterError:
                continue
            return prompt
        return [number % welcome.vocabulary_size]

    @property
    def _device(self) -> Device | None:
        return self.client.device if self.drafting and self.fault is None else None

    async def _warm_up(self, prompts: Sequence[Prompt]) -> int:
        """Let the first, slower passes go by; returns how long the answers may be."""
        first = await self._answer(prompts[0], tokens=_WARM_UP, drafting=False)
        step = statistics.median([step for step, _ in first.steps]) if first.steps else 0.0
        answers = len(prompts) * (2 if self._device is not None else 1)
        most, budget = (_TOKENS_QUICK, _BUDGET_QUICK) if self.quick else (_TOKENS, _BUDGET)
        return most if not step else max(_TOKENS_LEAST, min(most, int(budget / (answers * step))))

    async def _sample(self, task: str, prompt: Prompt, tokens: int, *, draft_first: bool, welcome: Welcome) -> None:
        drafted = None
        if draft_first and self._device is not None:
            drafted = await self._answer(prompt, tokens=tokens, drafting=True)
        plain = await self._answer(prompt, tokens=tokens, drafting=False)
        if not draft_first and self._device is not None:
            drafted = await self._answer(prompt, tokens=tokens, drafting=True)
        if drafted is None or self._device is None:
            self.samples.append(Sample(task, plain, None, ()))
            return
        answer = _until_end(plain.token_ids, welcome.eos_ids)
        right = await self._judge(self._device, cast("list[int]", prompt), answer)
        self.samples.append(Sample(task, plain, drafted, right))

    async def _answer(self, prompt: Prompt, *, tokens: int, drafting: bool) -> Answer:
        steps: list[tuple[float, int]] = []
        result: Result | None = None
        ahead = None if drafting else 0
        async with self.client.stream(
            prompt, max_tokens=tokens, temperature=0.0, ignore_eos=True, look_ahead=ahead
        ) as stream:
            async for event in stream:
                match event:
                    case RoundCompleted():
                        steps.append((event.computed, event.accepted))
                    case Degraded() if drafting:
                        self._blame(self.client.device, event.reason)
                    case Finished():
                        result = event.result
        assert result is not None  # a stream that ends otherwise raises
        return Answer(result.token_ids, result.stats, tuple(steps[1:]))

    async def _judge(self, device: Device, prompt_ids: list[int], answer: Sequence[int]) -> tuple[bool, ...]:
        """Where the device proposes the target's token, and how long it takes when it has nothing else to do."""
        proposer = Proposer(SamplingParams(temperature=0.0), seed=0, prompt_length=len(prompt_ids))
        tokens, right = list(prompt_ids), []
        async with device.lease() as drafter:
            await device.read(drafter, tokens)
            for token in answer[: max(0, drafter.context_length - len(tokens))]:
                drafted = await device.draft(drafter, tokens, proposer)
                self.steps_alone.append(drafted.seconds)
                right.append(drafted.proposal.token == token)
                tokens.append(token)
        return tuple(right)

    # --- what it comes to ---------------------------------------------------------------------------------------

    def measured(self) -> Measured | None:
        """The figures; None where the verifier answered nothing."""
        if not self.samples or not self.pings:
            return None
        plain = [sample.plain for sample in self.samples]
        steps = [step for answer in plain for step, _ in answer.steps]
        rates = [answer.stats.tokens_per_second for answer in plain]
        return Measured(
            rtt=statistics.median(self.pings),
            jitter=_high(self.pings) - statistics.median(self.pings),
            step=_step(steps),
            step_high=_high(steps) or _step(steps),
            slope=self._slope(_step(steps)),
            rate=statistics.harmonic_mean(rates) if all(rates) else math.inf,
            tokens=sum(len(answer.token_ids) for answer in plain),
            draft=self._draft_measured(),
            fault=self.fault,
            reason=self.reason,
        )

    def steps_with_drafts(self) -> tuple[float, float] | None:
        """Median seconds of a target step with drafts in it, and how many draft tokens that were on average.

        None where there was no such step. A commit does not say how many draft tokens its step verified, so the steps
        are those that accepted some, and the number is that of all steps with a draft.
        """
        drafted = [sample.drafted for sample in self.samples if sample.drafted is not None]
        steps = [step for answer in drafted for step, accepted in answer.steps if accepted]
        passes = sum(answer.stats.target_passes - answer.stats.run_ahead for answer in drafted)
        verified = sum(answer.stats.drafted for answer in drafted)
        return (statistics.median(steps), verified / passes) if steps and verified and passes > 0 else None

    def _slope(self, step: float) -> float:
        with_drafts = self.steps_with_drafts()
        if with_drafts is None:
            return 0.0
        seconds, tokens = with_drafts
        return max((seconds / step - 1) / tokens, 0.0)

    def _draft_measured(self) -> DraftMeasured | None:
        drafted = [sample.drafted.stats for sample in self.samples if sample.drafted is not None]
        rights = {sample.task: sample.right for sample in self.samples if sample.right}
        ratios = [ratio for sample in self.samples if (ratio := sample.ratio) is not None]
        if self.manifest is None or self.fault is not None or not (drafted and rights and ratios):
            return None
        alone = statistics.median(self.steps_alone)
        streaming = [stats.draft_seconds / stats.draft_steps for stats in drafted if stats.draft_steps]
        busy, cpu = (sum(getattr(stats, name) for stats in drafted) for name in ("draft_seconds", "draft_cpu_seconds"))
        trips = [trip for stats in drafted for trip in stats.rtt_seconds]
        sent, seconds = (sum(getattr(stats, name) for stats in drafted) for name in ("bytes_up", "total_seconds"))
        return DraftMeasured(
            rights=rights,
            streaming=statistics.median(streaming) if streaming else alone,
            alone=alone,
            alone_high=_high(self.steps_alone),
            cpu_share=cpu / busy if busy else 1.0,
            ratio=statistics.geometric_mean(ratios),
            stream_rtt=statistics.median(trips) if trips else None,
            bytes_up_per_second=sent / seconds,
            quantization=self.manifest.quantization.scheme,
            threads=self.threads or default_threads(),
            cores=_cores(),
        )


def _until_end(token_ids: tuple[int, ...], eos_ids: tuple[int, ...]) -> tuple[int, ...]:
    """Without what comes after the answer's end, which says little of a draft; at least one token."""
    ends = [place + 1 for place, token in enumerate(token_ids) if token in eos_ids]
    return token_ids[: ends[0]] if ends else token_ids


def _step(steps: Sequence[float]) -> float:
    """The usual one; of a target faster than the verifier's clock can tell, half the clock's unit."""
    return max(statistics.median(steps) if steps else 0.0, CLOCK_UNIT / 2)


def _high(values: Sequence[float]) -> float:
    """The 90th percentile."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return statistics.quantiles(values, n=10, method="inclusive")[-1]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
