"""One generation, as its caller sees it: it opens streams until one brings it to its end, and hands out events.

connect -> attempt -> done
  ^          | a failure that passes: wait, and go on from what has been committed
  +----------+
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Protocol, Self

from ..protocol.errors import ConnectionLostError, DraftwireError, UnknownPrefixError, VerifierError
from .attempt import Attempt, Setup
from .connection import VerifierConnection
from .events import Degraded, Event, Reconnecting, Result, TextDelta
from .lifeline import Tell
from .options import GenerationOptions
from .resumption import Resumption, is_loss
from .solo import Solo
from .transcript import Transcript

__all__ = ["AsyncStream", "Source"]


class Source(Protocol):
    """What a generation asks of its client, for one prompt."""

    async def connect(self, tell: Tell) -> VerifierConnection:
        """A usable connection; the client's streams look for one together."""

    async def setup(self, connection: VerifierConnection) -> Setup:
        """What a stream on that connection needs."""

    def drop_prefix(self) -> None:
        """The verifier does not hold what the prompt begins with: the next setup is for the whole prompt."""

    async def solo(self) -> Solo | None:
        """What the draft needs to go on alone, where it may and can."""

    def resumption(self) -> Resumption:
        """The rules for failures, for one generation."""


class AsyncStream:
    """A generation in progress; an async context manager that yields events.

    Iterate it for :data:`~.events.Event`, or :attr:`text_stream` for text alone; or just await
    :meth:`get_final_result`. Leaving the block early cancels the generation at the verifier.
    """

    def __init__(self, source: Source, options: GenerationOptions, streams: set[AsyncStream]) -> None:
        """Users call ``client.stream()``; ``streams`` holds those of the client that are running."""
        self._source = source
        self._streams = streams
        self._options = options
        self._seed = options.chosen_seed()
        self._transcript = Transcript(seed=self._seed)
        self._resumption = source.resumption()
        self._ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._last: VerifierConnection | None = None
        self._target: tuple[str, bytes] | None = None
        self._interrupted = False
        self._failure: Exception | None = None
        self._broke = False

    # --- for the caller -----------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._transcript.start_clock()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, reason: DraftwireError | None = None) -> None:
        """Stop the generation; fine when it has ended already. Whoever waits for its result is told ``reason``."""
        if self._task is not None:
            if self.result is None:
                self._failure = self._failure or reason
                self._task.cancel()
            await asyncio.wait([self._task])
            self._transcript.close()  # a task that was cancelled before its first turn has not
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
        return self._transcript.result

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
        if self.result is None:
            raise self._failure or VerifierError("the generation ended without a result")
        return self.result

    def partial_result(self) -> Result:
        """What was committed so far; after a failure, everything that was committed before it."""
        return self.result or self._transcript.result_so_far("error" if self._broke else "cancelled")

    # --- events -------------------------------------------------------------------------------------------------

    async def _iterate(self) -> AsyncIterator[Event]:
        self._check_started()
        while (event := await self._transcript.next_event()) is not None:
            yield event
        self._transcript.close()  # for whoever else iterates, now or later
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
            try:
                await self._generate()
            except DraftwireError as loss:
                await self._go_on_alone(loss)
        except asyncio.CancelledError:
            self._failure = self._failure or VerifierError("the generation was stopped before its end")
        except Exception as error:
            self._failure, self._broke = error, True
        finally:
            self._streams.discard(self)
            self._transcript.close()
            self._ended.set()

    async def _generate(self) -> None:
        """Open streams until one ends well."""
        while True:
            connection = await self._connect()
            try:
                await self._attempt(connection)
                return
            except DraftwireError as error:
                if error.retryable and self._transcript.finish_if_whole():  # END alone was lost
                    return
                wait = self._resumption.wait_after(error, time.monotonic(), lost=not connection.usable)
                if wait is None:
                    raise
                self._tell(error)
            await asyncio.sleep(wait)

    async def _connect(self) -> VerifierConnection:
        try:
            connection = await self._source.connect(self._tell)
        except DraftwireError as error:
            if not error.retryable or self._last is None:
                raise
            raise ConnectionLostError(
                f"the verifier was lost, and none can be reached ({error.headline}); "
                "what was committed has been delivered, generate again"
            ) from error
        if self._last is not None and connection is not self._last:
            self._transcript.stats.reconnects += 1
        self._last = connection
        return connection

    async def _attempt(self, connection: VerifierConnection) -> None:
        setup = await self._source.setup(connection)
        attempt = Attempt(
            setup,
            options=self._options,
            seed=self._seed,
            transcript=self._transcript,
            target=self._target,
            progressed=self._progressed,
        )
        self._target = (connection.welcome.target, connection.welcome.fingerprint)
        try:
            await attempt.run()
        except UnknownPrefixError:
            if setup.prefix is None:
                raise
            self._source.drop_prefix()
            await self._attempt(connection)

    def _progressed(self) -> None:
        self._interrupted = False
        self._resumption.progressed()

    def _tell(self, error: DraftwireError) -> None:
        """Say, once until there is more text, that it will take a while."""
        if not self._interrupted:
            self._interrupted = True
            self._transcript.tell(Reconnecting(reason=error.headline))

    async def _go_on_alone(self, loss: DraftwireError) -> None:
        """Without a verifier the draft writes the rest, where that was asked for; otherwise the loss is the end."""
        usable = is_loss(loss) and not self._transcript.cloud_only
        solo = await self._source.solo() if usable else None
        if solo is None:
            raise loss
        self._transcript.tell(Degraded(reason=loss.headline, mode="draft-only"))
        await solo.run(self._transcript, options=self._options, seed=self._seed)
