"""One generation: opens a stream, applies commits, drafts beside it, and turns tokens into events."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..protocol.errors import DraftwireError, UnknownPrefixError, VerifierError
from ..protocol.messages import Cancel, Commit, Draft, End, EndReason, Error, Open, Opened, Prefix
from .connection import Channel, VerifierConnection, stream_error
from .detokenizer import IncrementalDetokenizer
from .device import Device
from .draft_loop import DraftLoop
from .events import Degraded, Event, Finished, FinishReason, Result, RoundCompleted, TextDelta
from .gamma.choice import make_controller
from .gamma.controller import Round
from .gamma.figures import Figures
from .generation import Committed, Generation, round_of
from .options import GenerationOptions
from .prompt import Vocabulary
from .proposer import Proposer
from .stats import Stats

__all__ = ["AsyncStream", "Setup"]

_REASONS: dict[EndReason, FinishReason] = {
    EndReason.STOP: "stop",
    EndReason.LENGTH: "length",
    EndReason.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What the client has ready for a stream.

    ``prefix`` names an earlier stream on the connection, and how many of its tokens the prompt starts with.
    ``device`` is None for a cloud-only stream; ``degraded`` says why, where a draft was asked for. ``figures`` are what
    the device measured in its streams so far.
    """

    connection: VerifierConnection
    vocabulary: Vocabulary
    prompt_ids: list[int]
    prefix: Prefix | None
    retain: bool
    device: Device | None
    degraded: str | None
    figures: Figures
    paused: Callable[[], bool]
    finished: Callable[[int, list[int]], None]


class AsyncStream:
    """A generation in progress; an async context manager that yields events.

    Iterate it for :data:`~.events.Event`, or :attr:`text_stream` for text alone; or just await
    :meth:`get_final_result`. Leaving the block early cancels the generation at the verifier.
    """

    def __init__(
        self,
        prepare: Callable[[], AsyncIterator[Setup]],
        options: GenerationOptions,
        streams: set[AsyncStream],
    ) -> None:
        """Users call ``client.stream()``; ``streams`` holds those of the client that are running."""
        self._prepare = prepare
        self._streams = streams
        self._options = options
        self._seed = options.chosen_seed()
        self._stats = Stats()
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # None ends them
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._started = 0.0
        self._pieces: list[str] = []
        self._generation: Generation | None = None
        self._result: Result | None = None
        self._failure: Exception | None = None
        self._broke = False

    # --- for the caller -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._started = time.monotonic()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, reason: DraftwireError | None = None) -> None:
        """Stop the generation; fine when it has ended already. Whoever waits for its result is told ``reason``."""
        if self._task is not None:
            if self._result is None:
                self._failure = self._failure or reason
                self._task.cancel()
            await asyncio.wait([self._task])
            self._ended.set()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._iterate()

    @property
    def text_stream(self) -> AsyncIterator[str]:
        """The answer's text as it grows."""
        return self._iterate_text()

    @property
    def result(self) -> Result | None:
        """The result once there is one."""
        return self._result

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._seed

    async def get_final_result(self) -> Result:
        """The result, once the generation has ended; raises what it failed with, or that it was stopped.

        Events stay for whoever iterates. :meth:`partial_result` has what a stopped or failed generation committed.
        """
        self._check_started()
        await self._ended.wait()
        if self._result is None:
            raise self._failure or VerifierError("the generation ended without a result")
        return self._result

    def partial_result(self) -> Result:
        """What was committed so far; after a failure, everything that was committed before it."""
        return self._result or self._make_result("error" if self._broke else "cancelled")

    # --- events -------------------------------------------------------------------------------------------------

    async def _iterate(self) -> AsyncIterator[Event]:
        self._check_started()
        while (event := await self._events.get()) is not None:
            yield event
        self._events.put_nowait(None)  # for whoever else iterates, now or later
        if self._failure is not None:
            raise self._failure

    def _check_started(self) -> None:
        if self._task is None:
            raise VerifierError(
                "the stream has not started; use it in a 'with' block: with client.stream(...) as stream"
            )

    async def _iterate_text(self) -> AsyncIterator[str]:
        async for event in self:
            if isinstance(event, TextDelta) and event.text:
                yield event.text

    # --- the generation -----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        self._streams.add(self)
        try:
            async for setup in self._prepare():
                if await self._attempt(setup):
                    return
        except asyncio.CancelledError:
            self._failure = self._failure or VerifierError("the generation was stopped before its end")
        except Exception as error:
            self._failure, self._broke = error, True
        finally:
            self._streams.discard(self)
            self._events.put_nowait(None)
            self._ended.set()

    async def _attempt(self, setup: Setup) -> bool:
        """Generate. False when the verifier no longer holds the prefix, so that the whole prompt must be sent."""
        budget = self._options.budget(
            prompt_tokens=len(setup.prompt_ids), max_context=setup.connection.welcome.limits.max_context
        )
        stop_ids = () if self._options.ignore_eos else setup.connection.welcome.eos_ids
        channel = await setup.connection.open_stream(lambda stream: self._open(setup, stream, budget, stop_ids))
        again = self._generation is not None
        generation = self._generation = Generation(
            stream=channel.stream,
            prompt_ids=setup.prompt_ids,
            max_tokens=budget,
            stop_ids=stop_ids,
            most_ahead=setup.connection.welcome.limits.max_backlog,
            by_rejection=self._options.sampling.by_rejection,
        )
        if setup.degraded is not None and not again:
            self._events.put_nowait(Degraded(reason=setup.degraded))
        loop = self._draft_loop(setup, channel, generation)
        drafting = asyncio.create_task(loop.run()) if loop is not None else None
        try:
            await self._follow(setup, channel, generation, loop)
        except UnknownPrefixError:
            if setup.prefix is None:
                raise
            return False
        finally:
            channel.close()
            if drafting is not None:
                await _end(drafting)
        return True

    def _open(self, setup: Setup, stream: int, budget: int, stop_ids: tuple[int, ...]) -> Open:
        skipped = setup.prefix.length if setup.prefix is not None else 0
        return Open(
            stream=stream,
            token_ids=tuple(setup.prompt_ids[skipped:]),
            prompt_length=len(setup.prompt_ids),
            params=self._options.sampling,
            max_tokens=budget,
            seed=self._seed,
            policy=self._options.wire_policy,
            stop_ids=stop_ids,
            prefix=setup.prefix,
            drafting=setup.device is not None and self._options.drafting,
            retain=setup.retain,
        )

    def _draft_loop(self, setup: Setup, channel: Channel, generation: Generation) -> DraftLoop | None:
        if setup.device is None or not self._options.drafting:
            return None

        async def send(frame: Draft) -> int:
            return await channel.send(frame) if channel.live else 0

        return DraftLoop(
            setup.device,
            generation,
            Proposer(self._options.sampling, seed=self._seed, prompt_length=generation.prompt_length),
            make_controller(
                self._options.controller,
                look_ahead=self._options.look_ahead,
                figures=setup.figures,
                saves_passes=self._options.policy == "cost",
            ),
            self._stats,
            send=send,
            paused=setup.paused,
            degraded=lambda reason: self._events.put_nowait(Degraded(reason=reason)),
        )

    async def _follow(self, setup: Setup, channel: Channel, generation: Generation, loop: DraftLoop | None) -> None:
        """Apply what the verifier says until END."""
        text = IncrementalDetokenizer(setup.vocabulary.tokenizer, setup.prompt_ids)
        try:
            while True:
                message, size = await channel.receive()
                self._stats.bytes_down += size
                match message:
                    case Opened():
                        continue
                    case Commit():
                        committed = generation.apply(message)
                        round_ = round_of(message, committed, now=time.monotonic())
                        if loop is not None:
                            loop.committed(round_)
                        self._record(message, committed, round_)
                        self._emit(committed, text)
                    case Error():
                        raise stream_error(message)
                    case End():
                        setup.finished(channel.stream, generation.sequence)
                        self._finish(message, text)
                        return
        except BaseException:
            if channel.live:
                with contextlib.suppress(DraftwireError):
                    await channel.send(Cancel(stream=channel.stream))
            raise

    def _record(self, commit: Commit, committed: Committed, round_: Round) -> None:
        stats, now = self._stats, round_.now
        if stats.ttft_seconds is None:
            stats.ttft_seconds = now - self._started
        stats.rounds += 1
        stats.committed += round_.tokens
        stats.agreed += sum(committed.guessed)
        stats.count_accepted(commit.accepted)
        stats.total_seconds = now - self._started
        stats.queued_seconds += round_.queued
        stats.target_seconds += round_.computed
        if round_.rtt is not None:
            stats.rtt_seconds.append(round_.rtt)
        self._events.put_nowait(
            RoundCompleted(
                token_ids=committed.token_ids,
                accepted=commit.accepted,
                rtt=round_.rtt,
                queued=round_.queued,
                computed=round_.computed,
                block=round_.block,
            )
        )

    def _emit(self, committed: Committed, text: IncrementalDetokenizer) -> None:
        """One TextDelta for each run of tokens that the device had or had not guessed."""
        start, count = 0, len(committed.token_ids)
        for end in range(1, count + 1):
            if end == count or committed.guessed[end] != committed.guessed[start]:
                tokens = committed.token_ids[start:end]
                self._put_text(text.push(tokens), tokens, committed.guessed[start])
                start = end

    def _put_text(self, text: str, tokens: tuple[int, ...], guessed: bool) -> None:
        self._pieces.append(text)
        self._events.put_nowait(TextDelta(text=text, token_ids=tokens, guessed=guessed))

    def _finish(self, end: End, text: IncrementalDetokenizer) -> None:
        rest = text.finish()
        if rest:
            self._put_text(rest, (), False)
        stats = self._stats
        stats.count_last(end.accepted_tokens)
        stats.drafted, stats.run_ahead = end.drafted_tokens, end.run_ahead_tokens
        stats.accepted, stats.target_passes = end.accepted_tokens, end.target_passes
        stats.paths = self._generation.paths if self._generation is not None else 0
        stats.total_seconds = time.monotonic() - self._started
        self._result = self._make_result(_REASONS[end.reason])
        self._events.put_nowait(Finished(result=self._result))

    def _make_result(self, reason: FinishReason) -> Result:
        generation = self._generation
        return Result(
            text="".join(self._pieces),
            token_ids=generation.answer if generation is not None else (),
            finish_reason=reason,
            seed=self._seed,
            prompt_tokens=generation.prompt_length if generation is not None else 0,
            stats=self._stats,
        )


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel a task and see it end, even when cancelled meanwhile: a task left behind would outlive its stream."""
    task.cancel()
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interrupted = error
    if interrupted is not None:
        raise interrupted
