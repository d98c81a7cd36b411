"""The adverse benchmark: drafting beside cloud-only where drafting has little to gain, condition by condition."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...protocol.errors import DraftwireError
from ...protocol.manifest import Manifest
from ...protocol.messages import Welcome
from ..client import AsyncEdgeClient
from .adverse_outcome import AdverseOutcome
from .adversities import Adversity
from .handicaps import HandicappedClient, HandicappedDevice
from .measure import Answer, measure
from .modes import Mode, parse_modes
from .outcome import Collected
from .processes import spinning
from .prompts import BenchPrompt, lengthened
from .subject import Subject, check_address, meet, reached

__all__ = ["AdverseBenchmark", "AdversePlan"]

_WARM_UP_TOKENS = 16
_SHORT_TOKENS = 4
"""Of answers of which only the first token counts; one alone would leave the draft nothing to do."""

_PINGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AdversePlan:
    """What to measure.

    Attributes:
        adversities: under which conditions.
        prompts: what is asked under each.
        max_tokens: of each answer whose speed counts.
        repeats: of every prompt.
        first_tokens: pairs of answers whose first token counts; where speed takes fewer, short ones are added.
        seed: of jitter, and of what a useless draft proposes.
    """

    adversities: Sequence[Adversity]
    prompts: Sequence[BenchPrompt]
    max_tokens: int
    repeats: int
    first_tokens: int
    seed: int

    @property
    def modes(self) -> list[Mode]:
        """Cloud-only, and what every client does by default."""
        return parse_modes(["draftwire"])

    def prompts_for(self, adversity: Adversity) -> list[BenchPrompt]:
        """As long as they are to be."""
        return [lengthened(prompt) if adversity.long else prompt for prompt in self.prompts]


class AdverseBenchmark:
    """Runs a plan. What is done is kept when it is interrupted.

    Args:
        plan: what to measure.
        subject: whom.
        say: told in a line what goes on.
    """

    def __init__(self, plan: AdversePlan, subject: Subject, *, say: Callable[[str], None]) -> None:
        self.plan = plan
        self._subject = subject
        self._say = say
        self.welcome: Welcome | None = None
        """What the verifier said of itself, once it was reached."""
        self.manifest = Manifest.load(subject.draft)
        self.outcomes: list[AdverseOutcome] = []

    @property
    def failed(self) -> bool:
        """Whether a condition was given up."""
        return any(each.outcome.failure is not None for each in self.outcomes)

    async def run(self) -> None:
        """Measure. A condition that fails is given up and told in its outcome.

        Raises:
            DraftwireError: verifier and draft cannot be used together at all.
        """
        check_address(self._subject.url, [adversity.net for adversity in self.plan.adversities])
        async with self._subject.client(self._subject.url) as client:
            self.welcome, _ = await meet(client, [])
        for adversity in self.plan.adversities:
            await self._measure(adversity)

    async def _measure(self, adversity: Adversity) -> None:
        self._say(f"{adversity.name} ({len(self.outcomes) + 1} of {len(self.plan.adversities)}) ...")
        run = _Run(self.plan, adversity)
        try:
            async with contextlib.AsyncExitStack() as stack:
                if adversity.busy:
                    stack.enter_context(spinning())
                url = await stack.enter_async_context(reached(self._subject.url, adversity.net, seed=self.plan.seed))
                client = await stack.enter_async_context(self._client(url, adversity))
                await run.through(client)
            run.collected.complete = True
        except DraftwireError as error:
            run.collected.failure = str(error)
        finally:  # an interrupt as well: what was measured is shown
            self._keep(run.outcome())

    def _client(self, url: str, adversity: Adversity) -> AsyncEdgeClient:
        if adversity.handicap is None:
            return self._subject.client(url)
        return HandicappedClient(url, adversity.handicap, **self._subject.options)

    def _keep(self, outcome: AdverseOutcome) -> None:
        self.outcomes.append(outcome)
        name, first = outcome.adversity.name, outcome.first_token
        if outcome.outcome.failure is not None:
            self._say(f"{name} failed: {outcome.outcome.failure}")
        elif outcome.both is not None and first is not None:
            self._say(f"{name}: {outcome.both[1].ratio.middle:.2f}x, first token {first.ratio:.2f}x")


class _Run:
    """One condition, with a client that has known no other."""

    def __init__(self, plan: AdversePlan, adversity: Adversity) -> None:
        self._plan = plan
        self._adversity = adversity
        self._prompts = plan.prompts_for(adversity)
        self._ids: dict[str, list[int]] = {}
        self._short: list[Answer] = []
        self.collected = Collected()

    async def through(self, client: AsyncEdgeClient) -> None:
        """Everything that is to be measured."""
        plan, prompts = self._plan, self._prompts
        _, self._ids = await meet(client, prompts)
        await self._warm_up(client)
        self.collected.rtt = statistics.median([await client.ping() for _ in range(_PINGS)])
        for number in range(max(plan.first_tokens, plan.repeats * len(prompts))):
            repeat, place = divmod(number, len(prompts))
            # Who begins changes from prompt to prompt, and for each from time to time, so that no drift favours one.
            modes = plan.modes[:: -1 if (repeat + place) % 2 else 1]
            counts = repeat < plan.repeats
            tokens = plan.max_tokens if counts else _SHORT_TOKENS
            pair = [
                await self._answer(client, prompts[place], mode, repeat=repeat, max_tokens=tokens) for mode in modes
            ]
            (self.collected.answers if counts else self._short).extend(pair)

    def outcome(self) -> AdverseOutcome:
        """What came of it."""
        return AdverseOutcome.of(
            self._adversity,
            self._plan.modes,
            self.collected,
            short=self._short,
            prompt_tokens={name: len(ids) for name, ids in self._ids.items()},
        )

    async def _warm_up(self, client: AsyncEdgeClient) -> None:
        """The first passes of a model are slower; and a draft that is to be slow must be told what slow is."""
        for mode in self._plan.modes:
            answer = await self._answer(client, self._prompts[0], mode, repeat=0, max_tokens=_WARM_UP_TOKENS)
            if isinstance(client.device, HandicappedDevice) and not client.device.step_seconds:
                client.device.step_seconds = statistics.median(each.computed for each in answer.rounds[1:])

    async def _answer(
        self, client: AsyncEdgeClient, prompt: BenchPrompt, mode: Mode, *, repeat: int, max_tokens: int
    ) -> Answer:
        await _forget(client)
        return await measure(
            client,
            prompt,
            self._ids[prompt.name],
            mode=mode,
            variant=mode.variants[0],
            seed=self._plan.seed + repeat,
            repeat=repeat,
            temperature=0.0,
            max_tokens=max_tokens,
            ignore_eos=True,
        )


async def _forget(client: AsyncEdgeClient) -> None:
    """Let the draft read every prompt anew, as it would in use. The verifier keeps nothing that it is not asked to."""
    if client.device is not None:
        async with client.device.lease() as drafter:
            drafter.rollback(0)
