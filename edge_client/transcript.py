"""What a generation has delivered so far: tokens to text, counters, and the events that tell of both.

It outlives the connections: whatever is lost and taken up again, one transcript goes on.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from ..protocol.detokenizer import IncrementalDetokenizer
from ..protocol.messages import Commit, End, EndReason
from .events import Degraded, Event, Finished, FinishReason, Result, RoundCompleted, TextDelta
from .gamma.controller import Round
from .generation import Committed, Generation
from .prompt import Vocabulary
from .stats import Stats

__all__ = ["Transcript"]

_REASONS: dict[EndReason, FinishReason] = {
    EndReason.STOP: "stop",
    EndReason.LENGTH: "length",
    EndReason.CANCELLED: "cancelled",
}


@dataclass(slots=True)
class _Counted:
    """The client's own count of what the verifier counts, on one stream."""

    drafted: int = 0
    accepted: int = 0
    target_passes: int = 0
    run_ahead: int = 0


class Transcript:
    """Takes what is committed, and what the draft adds alone, and tells of it.

    Args:
        seed: of the generation.

    Attributes:
        stats: counters so far.
        generation: the answer so far; None before it has begun.
        cloud_only: whether the caller has been told that the draft is not used.
        result: once the answer is whole.
    """

    def __init__(self, *, seed: int) -> None:
        self.stats = Stats()
        self.generation: Generation | None = None
        self.cloud_only = False
        self.result: Result | None = None
        self._seed = seed
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None ends them
        self._started = time.monotonic()
        self._pieces: list[str] = []
        self._text: IncrementalDetokenizer | None = None
        self._counted = _Counted()
        self._drafting = False

    # --- events -------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> None:
        """Put an event."""
        self._events.put_nowait(event)

    def degrade(self, reason: str) -> None:
        """Tell, once, that the generation goes on without the draft."""
        if not self.cloud_only:
            self.cloud_only = True
            self.tell(Degraded(reason=reason))

    def close(self) -> None:
        """There is no event to come; said again by whoever has found that out, for others who listen."""
        self._events.put_nowait(None)

    async def next_event(self) -> Event | None:
        """The next event; None after the last."""
        return await self._events.get()

    # --- the generation -----------------------------------------------------------------------------------------

    def start_clock(self) -> None:
        """Times count from now."""
        self._started = time.monotonic()

    def begin(self, generation: Generation, vocabulary: Vocabulary) -> None:
        """The answer is to be written to ``generation``, which holds the prompt alone."""
        self.generation = generation
        self._text = IncrementalDetokenizer(vocabulary.tokenizer, generation.sequence)

    def open_stream(self, *, drafting: bool) -> None:
        """A stream begins, from the generation's end on; ``drafting`` is what its verifier is told."""
        self._counted = _Counted()
        self._drafting = drafting

    def record(self, commit: Commit, committed: Committed, round_: Round) -> None:
        """A commit was applied to the generation."""
        self._count(commit, committed, round_)
        self.tell(
            RoundCompleted(
                token_ids=committed.token_ids,
                accepted=commit.accepted,
                rtt=round_.rtt,
                queued=round_.queued,
                computed=round_.computed,
                block=round_.block,
            )
        )
        for start, end in _runs(committed.guessed):
            tokens = committed.token_ids[start:end]
            self._put_text(self._push(tokens), tokens, guessed=committed.guessed[start])

    def record_unverified(self, token: int) -> None:
        """The draft's own token was added to the generation."""
        self.stats.unverified += 1
        self._take_time(time.monotonic())
        self._put_text(self._push((token,)), (token,), guessed=True, verified=False)

    def finish(self, end: End) -> None:
        """The verifier has ended the stream well; its counts replace ours of this stream."""
        stats, counted = self.stats, self._counted
        accepted = stats.accepted - counted.accepted + end.accepted_tokens
        stats.count_last(accepted)
        stats.accepted = accepted
        stats.drafted += end.drafted_tokens - counted.drafted
        stats.run_ahead += end.run_ahead_tokens - counted.run_ahead
        stats.target_passes += end.target_passes - counted.target_passes
        self._finish(end.reason)

    def finish_if_whole(self) -> bool:
        """End the answer if its tokens say that it is over, though no verifier does any more."""
        if self.generation is None or (reason := self.generation.ended) is None:
            return False
        self._finish(reason)
        return True

    def result_so_far(self, reason: FinishReason) -> Result:
        """The result as of now."""
        generation = self.generation
        return Result(
            text="".join(self._pieces),
            token_ids=generation.answer if generation is not None else (),
            finish_reason=reason,
            seed=self._seed,
            prompt_tokens=generation.prompt_length if generation is not None else 0,
            stats=self.stats,
            unverified_tokens=self.stats.unverified,
        )

    def _finish(self, reason: EndReason) -> None:
        assert self._text is not None, "it has begun"
        rest = self._text.finish()
        if rest:
            self._put_text(rest, (), guessed=False, verified=not self.stats.unverified)
        self.stats.total_seconds = time.monotonic() - self._started
        self.result = self.result_so_far(_REASONS[reason])
        self.tell(Finished(result=self.result))

    def _count(self, commit: Commit, committed: Committed, round_: Round) -> None:
        stats, counted = self.stats, self._counted
        self._take_time(round_.now)
        stats.rounds += 1
        stats.committed += round_.tokens
        stats.agreed += sum(committed.guessed)
        stats.count_accepted(commit.accepted)
        stats.queued_seconds += round_.queued
        stats.target_seconds += round_.computed
        if round_.rtt is not None:
            stats.rtt_seconds.append(round_.rtt)
        tested = max(committed.block or 0, commit.accepted)
        ran_ahead = round_.tokens if self._drafting and not tested else 0
        counted.accepted += commit.accepted
        counted.target_passes += 1
        counted.drafted += tested
        counted.run_ahead += ran_ahead
        stats.target_passes += 1
        stats.drafted += tested
        stats.run_ahead += ran_ahead
        if self.generation is not None:
            stats.paths = self.generation.paths

    def _take_time(self, now: float) -> None:
        if self.stats.ttft_seconds is None:
            self.stats.ttft_seconds = now - self._started
        self.stats.total_seconds = now - self._started

    def _push(self, tokens: tuple[int, ...]) -> str:
        assert self._text is not None, "it has begun"
        return self._text.push(tokens)

    def _put_text(self, text: str, tokens: tuple[int, ...], *, guessed: bool, verified: bool = True) -> None:
        self._pieces.append(text)
        self.tell(TextDelta(text=text, token_ids=tokens, guessed=guessed, verified=verified))


def _runs(guessed: tuple[bool, ...]) -> list[tuple[int, int]]:
    """Start and end of each run of tokens that the device had or had not guessed."""
    bounds = [index for index in range(1, len(guessed)) if guessed[index] != guessed[index - 1]]
    return list(zip([0, *bounds], [*bounds, len(guessed)], strict=True)) if guessed else []
