"""The real scheduler and streams against simulated devices, in simulated time."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.engine.stream import Owner, VerifierStream, Work
from draftwire.protocol.acceptance import Verdict
from draftwire.protocol.messages import Draft, Message, Open, Policy, confidence_byte
from draftwire.protocol.sampling import SamplingParams

RIGHT, WRONG = 1, 0  # the target commits nothing but RIGHT
PROMPT = 8


@dataclass(frozen=True, slots=True)
class Text:
    """For each position of the answer whether the draft has it right, and the confidence byte it gives."""

    right: Sequence[bool]
    confidences: Sequence[int]


def text_in_runs(tokens: int, *, seed: int, sure: float = 0.95, doubtful: float = 0.55) -> Text:
    """Sure stretches and doubtful ones, in turns of 10 and 7 tokens on average; the draft knows which is which."""
    rng = random.Random(seed)
    right, confidences, is_sure = [], [], True
    for _ in range(tokens):
        is_sure ^= rng.random() < (1 / 10 if is_sure else 1 / 7)
        right.append(rng.random() < (sure if is_sure else doubtful))
        confidences.append(confidence_byte(min(1.0, (sure if is_sure else doubtful) * rng.uniform(0.8, 1.05))))
    return Text(right, confidences)


class Device:
    """Drafts one token after another, at most 16 beyond what it knows to be committed, and sends each at once.

    As the real one does: a commit takes effect when it is heard, but a drafting step under way runs to its end, and
    its token is dropped where the path it was made for has been left.

    Args:
        text: what it drafts.
        seconds: of one drafting step.
        delay: of each message, one way; messages do not overtake one another.
        until: it begins no step once it knows of so many committed tokens.
    """

    def __init__(self, text: Text, *, seconds: float, delay: Callable[[], float], until: int | None = None) -> None:
        self._text = text
        self._seconds = seconds
        self._delay = delay
        self._until = len(text.right) if until is None else until
        self._known = 0
        self._path, self._start = 1, 0
        self._tokens: list[int] = []
        self._drafting: tuple[int, float] | None = None  # for which path, until when
        self._heard: deque[tuple[float, int]] = deque()
        self._last_heard = self._last_landed = 0.0
        self._begin(0.0)

    def hear(self, sent: float, tokens: int) -> None:
        """The verifier commits so many tokens."""
        self._last_heard = max(self._last_heard, sent + self._delay())
        self._heard.append((self._last_heard, tokens))

    @property
    def next_event(self) -> float:
        """When it next does anything."""
        return min(self._drafting[1] if self._drafting else math.inf, self._heard[0][0] if self._heard else math.inf)

    def drafts(self, until: float) -> Iterator[tuple[float, Draft]]:
        """Frames sent up to ``until``, and when each arrives."""
        while (now := self.next_event) <= until:
            if self._heard and self._heard[0][0] == now:
                self._apply(self._heard.popleft()[1])
            elif self._drafting is not None:
                path, self._drafting = self._drafting[0], None
                if path == self._path:
                    yield self._send(now)
            self._begin(now)

    def _wants_more(self) -> bool:
        end = self._start + len(self._tokens)
        return end - self._known < 16 and end < len(self._text.right) - 1 and self._known < self._until

    def _begin(self, now: float) -> None:
        if self._drafting is None and self._wants_more():
            self._drafting = (self._path, now + self._seconds)

    def _send(self, now: float) -> tuple[float, Draft]:
        position = self._start + len(self._tokens)
        self._tokens.append(RIGHT if WRONG not in self._tokens and self._text.right[position] else WRONG)
        self._last_landed = max(self._last_landed, now + self._delay())
        frame = Draft(
            stream=1,
            path=self._path,
            start=PROMPT + position,
            token_ids=(self._tokens[-1],),
            confidences=(self._text.confidences[position],),
            sent_at=0,
            continues=self._wants_more(),
        )
        return self._last_landed, frame

    def _apply(self, tokens: int) -> None:
        self._known += tokens
        committed = self._known - self._start
        if WRONG in self._tokens[:committed] or len(self._tokens) < committed:
            self._path, self._start, self._tokens = self._path + 1, self._known, []


@dataclass(slots=True, eq=False)
class Client:
    """One stream, and the device that drafts for it, if one does."""

    stream: VerifierStream
    device: Device | None
    arriving: deque[tuple[float, Draft]] = field(default_factory=deque)
    passes: int = 0
    seconds: float = 0.0

    def take_drafts(self, now: float) -> None:
        """Hand the verifier what has arrived by ``now``."""
        if self.device is not None:
            self.arriving.extend(self.device.drafts(now))
        while self.arriving and self.arriving[0][0] <= now:
            at, draft = self.arriving.popleft()
            self.stream.take_draft(draft, now=at, max_backlog=64)

    @property
    def next_event(self) -> float:
        """Before this nothing new arrives."""
        event = self.arriving[0][0] if self.arriving else math.inf
        return event if self.device is None else min(event, self.device.next_event)


@dataclass(slots=True)
class Simulation:
    """A verifier whose step over M tokens takes ``step * (1 + slope * (M - 1))`` seconds."""

    scheduler: Scheduler
    step: float
    slope: float = 0.03
    clients: list[Client] = field(default_factory=list)

    def add(
        self, tokens: int, device: Device | None = None, *, policy: Policy = Policy.LATENCY, drafting: bool = True
    ) -> Client:
        """Open a stream, its prompt read but for the last token."""
        prompt = [RIGHT] * PROMPT
        request = Open(
            stream=len(self.clients) + 1,
            token_ids=tuple(prompt),
            prompt_length=PROMPT,
            params=SamplingParams(),
            max_tokens=tokens,
            seed=1,
            policy=policy,
            drafting=drafting,
        )
        stream = VerifierStream(
            slot=request.stream, owner=_Nobody(), request=request, sequence=prompt, cached=PROMPT - 1, opened_at=0.0
        )
        self.clients.append(Client(stream, device))
        return self.clients[-1]

    def run(self) -> None:
        """Until every stream has ended."""
        now = 0.0
        while live := {client.stream.slot: client for client in self.clients if not client.stream.finished}:
            for client in live.values():
                client.take_drafts(now)
            plan = self.scheduler.plan([client.stream for client in live.values()], now)
            if plan.work:
                now = self._advance(plan.work, live, now)
            else:
                assert plan.wake_at is not None
                assert plan.wake_at > now
                now = max(now, min(plan.wake_at, *(client.next_event for client in live.values())))

    def _advance(self, work: Sequence[Work], live: dict[int, Client], started: float) -> float:
        tokens = sum(len(share.block.tokens) for share in work)
        seconds = self.step * (1 + self.slope * (tokens - 1))
        self.scheduler.stepped(work, seconds)
        for share in work:
            client, ended = live[share.stream.slot], started + seconds
            right = [proposal.token == RIGHT for proposal in share.proposals]
            accepted = right.index(False) if False in right else len(right)
            committed = (RIGHT,) * (accepted + 1)
            share.stream.commit(Verdict(committed, accepted), share.proposals, started=started, ended=ended)
            client.passes += 1
            client.seconds = ended
            if client.device is not None:
                client.device.hear(ended, len(committed))
        return started + seconds


class _Nobody(Owner):
    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def steady(rtt: float) -> Callable[[], float]:
    """Half of the round trip each way."""
    return lambda: rtt / 2


def spiky(rtt: float, *, seed: int, chance: float, least: float = 0.02, most: float = 0.4) -> Callable[[], float]:
    """Now and then a message takes much longer."""
    rng = random.Random(seed)
    return lambda: rtt / 2 + (rng.uniform(least, most) if rng.random() < chance else 0.0)


def jittery(rtt: float, *, seed: int, up_to: float) -> Callable[[], float]:
    """Every message takes up to so much longer."""
    rng = random.Random(seed)
    return lambda: rtt / 2 + rng.uniform(0.0, up_to)


def alone(
    text: Text,
    delay: Callable[[], float],
    *,
    step: float,
    slope: float = 0.03,
    draft: float = 0.007,
    until: int | None = None,
    policy: Policy = Policy.LATENCY,
    scheduler: Scheduler | None = None,
) -> tuple[float, float]:
    """Seconds and target passes per token of a stream by itself."""
    simulation = Simulation(scheduler or Scheduler(), step, slope)
    count = len(text.right)
    client = simulation.add(count, Device(text, seconds=draft, delay=delay, until=until), policy=policy)
    simulation.run()
    return client.seconds / count, client.passes / count
