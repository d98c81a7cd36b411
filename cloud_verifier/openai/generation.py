"""The streams of one call: opened at the engine together, followed as they grow, and dropped when the caller leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...protocol.messages import Commit, End, Error, Message, Open, Opened
from ..engine.engine import Engine
from ..engine.stream import Owner
from ..service.http import Visitor
from .choice import Choice
from .problem import Problem

__all__ = ["Delta", "Generation", "GenerationError"]


class GenerationError(Exception):
    """A stream was refused or has failed, and with it the whole call."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of a choice, or its end, or both."""

    choice: Choice
    text: str
    ended: bool


class Generation(Owner):
    """Owner of one call's streams, one for each choice. Its methods but :meth:`deliver` are the event loop's.

    Args:
        engine: serves the streams.
        visitor: whose they are.
        requests: one for each choice; stream ids count from 1, in the choices' order.
        choices: what becomes of the tokens.
    """

    def __init__(self, engine: Engine, visitor: Visitor, requests: Sequence[Open], choices: Sequence[Choice]) -> None:
        self.tenant = visitor.allowance.tenant or visitor.tenant
        self.address = visitor.address
        self.route = visitor.route
        self.request_id = visitor.request_id
        self.traceparent = visitor.traceparent
        self.cached = [0] * len(choices)
        """Prompt tokens of each choice that were known already."""
        self._engine = engine
        self._visitor = visitor
        self._requests = requests
        self._choices = choices
        self._unopened = {request.stream for request in requests}
        self._running = set(self._unopened)  # at the engine
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[Sequence[Message]] = deque()
        self._news = asyncio.Event()
        self._woken = False
        self._deltas: list[Delta] = []
        self._failure: Problem | None = None
        self._closed = False

    @property
    def done(self) -> bool:
        """Whether every choice has ended, and every delta been handed out."""
        return not self._deltas and all(choice.finish_reason is not None for choice in self._choices)

    async def start(self) -> None:
        """Open the streams, and wait until they have a place or some are under way.

        Raises:
            DraftwireError: the caller may not open them.
            GenerationError: one of them was refused.
        """
        self._visitor.allowance.ask(*self._requests)
        for request in self._requests:
            self._engine.open(self, request)
        while self._unopened and not self._deltas and self._failure is None:
            await self._news.wait()
            self._take_news()
        if self._failure is not None:
            raise GenerationError(self._failure)

    async def more(self, *, within: float | None = None) -> list[Delta]:
        """What has come since the last time; waits for it, at most ``within`` seconds, and may have nothing then.

        Raises:
            GenerationError: a stream has failed; what came before that has been handed out.
        """
        if not self._deltas and not self.done and self._failure is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within):
                    await self._news.wait()
            self._take_news()
        deltas, self._deltas = self._deltas, []
        if not deltas and self._failure is not None:
            raise GenerationError(self._failure)
        return deltas

    def close(self) -> None:
        """Forget the streams that still run. May be said again."""
        if not self._closed and self._running:
            self._engine.drop(self)
        self._closed = True

    # --- from the engine, in its thread -------------------------------------------------------------------------

    def deliver(self, messages: Sequence[Message]) -> None:
        """See :class:`~..engine.stream.Owner`. One wake-up serves whatever comes before the event loop's turn."""
        self._arrived.append(messages)
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has closed under a last message
                self._loop.call_soon_threadsafe(self._news.set)

    # --- what it said, in the event loop's thread -----------------------------------------------------------------

    def _take_news(self) -> None:
        self._news.clear()
        self._woken = False  # before the look at what is there: what comes later wakes the loop again
        for _ in range(len(self._arrived)):
            self._take(self._arrived.popleft())

    def _take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            match message:
                case Opened():
                    self.cached[message.stream - 1] = message.cached
                    self._unopened.discard(message.stream)
                case Commit():
                    self._commit(message)
                case End():
                    self._running.discard(message.stream)
                    choice = self._choices[message.stream - 1]
                    if choice.finish_reason is None:
                        text = choice.end(message.reason)
                        self._deltas.append(Delta(choice, text, ended=True))
                case Error():
                    self._running.discard(message.stream)
                    self._failure = self._failure or Problem.of_frame(message)

    def _commit(self, commit: Commit) -> None:
        choice = self._choices[commit.stream - 1]
        if choice.finish_reason is not None:  # a stop string was found, and the cancellation is on its way
            return
        assert commit.token is not None, "only a draft's bonus is withheld, and there are no drafts"
        text = choice.take(commit.token)
        ended = choice.finish_reason is not None
        if ended:
            self._engine.cancel(self, commit.stream)
        self._deltas.append(Delta(choice, text, ended))
