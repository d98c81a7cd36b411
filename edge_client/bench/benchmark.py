"""The benchmark itself: every prompt in every mode under every condition, side by side."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...protocol.errors import DraftwireError
from ...protocol.manifest import Manifest
from ...protocol.messages import Welcome
from ...protocol.sampling import SamplingParams
from ..client import AsyncEdgeClient
from ..trace import Trace, TraceRecord, record
from .conditions import Condition, Net
from .measure import Answer, measure
from .modes import CLOUD_ONLY, Mode, Variant
from .outcome import Collected, Outcome
from .prompts import BenchPrompt
from .subject import Subject, check_address, meet, reached

__all__ = ["Benchmark", "Plan"]

_WARM_UP_TOKENS = 8
_PINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. ``seed`` is the first repeat's; each further one takes the next."""

    modes: Sequence[Mode]
    prompts: Sequence[BenchPrompt]
    nets: Sequence[Net]
    temperatures: Sequence[float]
    max_tokens: int
    repeats: int
    seed: int

    @property
    def conditions(self) -> int:
        """How many there are."""
        return len(self.nets) * len(self.temperatures)


class Benchmark:
    """Runs a plan. What is done is kept when it is interrupted.

    Args:
        plan: what to measure.
        subject: whom.
        say: told in a line what goes on.
    """

    def __init__(self, plan: Plan, subject: Subject, *, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._subject = subject
        self._say = say
        self._prompt_ids: dict[str, list[int]] = {}
        self._records: dict[tuple[str, float, int], TraceRecord] = {}
        self._welcome: Welcome | None = None
        self.manifest = Manifest.load(subject.draft)
        self.outcomes: list[Outcome] = []

    @property
    def welcome(self) -> Welcome | None:
        """What the verifier said of itself, once it was reached."""
        return self._welcome

    @property
    def prompt_ids(self) -> list[list[int]]:
        """The prompts' token ids, once the verifier was reached."""
        return [self._prompt_ids[prompt.name] for prompt in self.plan.prompts if prompt.name in self._prompt_ids]

    @property
    def trace(self) -> Trace:
        """What was recorded on the way: a record for each prompt, temperature and seed, where a device would draft."""
        target = self._welcome.target if self._welcome is not None else ""
        return Trace(
            target=target, draft=self.manifest.name, records=[found for found in self._records.values() if found.ranks]
        )

    @property
    def failed(self) -> bool:
        """Whether a condition was given up."""
        return any(outcome.failure is not None for outcome in self.outcomes)

    async def run(self) -> None:
        """Measure. A condition that fails is given up and told in its outcome.

        Raises:
            DraftwireError: verifier and draft cannot be used together at all.
        """
        check_address(self._subject.url, self.plan.nets)
        async with self._subject.client(self._subject.url) as client:
            self._welcome, self._prompt_ids = await meet(client, self.plan.prompts)
        for net in self.plan.nets:
            await self._measure_net(net)

    # --- one network ----------------------------------------------------------------------------------------------

    async def _measure_net(self, net: Net) -> None:
        """All temperatures over one emulated network, with a client that has known no other."""
        waiting = [Condition(net=net, temperature=temperature) for temperature in self.plan.temperatures]
        try:
            async with (
                reached(self._subject.url, net, seed=self.plan.seed) as url,
                self._subject.client(url) as client,
            ):
                await self._warm_up(client)
                while waiting:
                    await self._measure_condition(client, waiting.pop(0))
        except DraftwireError as error:
            for condition in waiting:
                self._keep(Outcome(condition=condition, failure=str(error)))

    async def _warm_up(self, client: AsyncEdgeClient) -> None:
        """The first passes of a model are slower, and a device that knows nothing yet of its network drafts worse."""
        first = self.plan.prompts[0]
        for mode in self.plan.modes:
            for variant in mode.variants:
                await client.generate(
                    self._prompt_ids[first.name], max_tokens=_WARM_UP_TOKENS, ignore_eos=True, **variant.options
                )

    # --- one condition --------------------------------------------------------------------------------------------

    async def _measure_condition(self, client: AsyncEdgeClient, condition: Condition) -> None:
        self._say(f"{condition} ({len(self.outcomes) + 1} of {self.plan.conditions}) ...")
        collected = Collected()
        try:
            collected.rtt = statistics.median([await client.ping() for _ in range(_PINGS)])
            turn = 0
            for repeat in range(self.plan.repeats):
                for prompt in self.plan.prompts:
                    collected.answers += await self._answer(client, condition, prompt, repeat=repeat, turn=turn)
                    turn += 1
            collected.complete = True
        except DraftwireError as error:
            collected.failure = str(error)
        finally:  # an interrupt as well: what was measured is shown
            rights = self._rights(collected.answers, condition.temperature)
            self._keep(Outcome.of(condition, self.plan.modes, collected, rights))

    async def _answer(
        self, client: AsyncEdgeClient, condition: Condition, prompt: BenchPrompt, *, repeat: int, turn: int
    ) -> list[Answer]:
        """One prompt in every variant of every mode. Who begins changes, so that no drift favours one."""
        ways = [(mode, variant) for mode in self.plan.modes for variant in mode.variants]
        start = turn % len(ways)
        answers = [
            await self._answer_in(client, condition, prompt, mode, variant, repeat=repeat)
            for mode, variant in [*ways[start:], *ways[:start]]
        ]
        alone = next(answer for answer in answers if answer.mode == CLOUD_ONLY)
        await self._record(client, condition.temperature, alone)
        return answers

    async def _answer_in(
        self,
        client: AsyncEdgeClient,
        condition: Condition,
        prompt: BenchPrompt,
        mode: Mode,
        variant: Variant,
        *,
        repeat: int,
    ) -> Answer:
        return await measure(
            client,
            prompt,
            self._prompt_ids[prompt.name],
            mode=mode,
            variant=variant,
            seed=self.plan.seed + repeat,
            repeat=repeat,
            temperature=condition.temperature,
            max_tokens=self.plan.max_tokens,
        )

    def _keep(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.failure is not None:
            self._say(f"{outcome.condition} failed: {outcome.failure}")
        elif outcome.modes:
            speeds = ", ".join(f"{each.mode} {each.ratio.middle:.2f}x" for each in outcome.modes)
            self._say(f"{outcome.condition}: {speeds}")

    # --- where the draft is right ---------------------------------------------------------------------------------

    async def _record(self, client: AsyncEdgeClient, temperature: float, answer: Answer) -> None:
        """Ask the draft about the text of a cloud-only answer; the same text comes at every round trip."""
        key = (answer.prompt, temperature, answer.seed)
        if key in self._records or client.device is None:
            return
        async with client.device.lease() as drafter:
            ask = partial(
                record,
                drafter,
                self._prompt_ids[answer.prompt],
                answer.token_ids,
                sampling=SamplingParams(temperature=temperature),
                seed=answer.seed,
                task=answer.task,
            )
            self._records[key] = await asyncio.to_thread(ask)

    def _rights(self, answers: Sequence[Answer], temperature: float) -> dict[str, tuple[bool, ...]]:
        """By prompt, repeats one after another; nothing unless every answer's text was recorded."""
        rights: dict[str, tuple[bool, ...]] = {}
        for answer in answers:
            if answer.mode != CLOUD_ONLY:
                continue
            found = self._records.get((answer.prompt, temperature, answer.seed))
            if found is None or not found.right:
                return {}
            rights[answer.prompt] = rights.get(answer.prompt, ()) + found.right
        return rights
