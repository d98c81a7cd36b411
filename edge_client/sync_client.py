"""EdgeClient: the same SDK without asyncio. It drives :class:`~.client.AsyncEdgeClient` on a loop thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from ..protocol.errors import ConnectionLostError, InvalidParameterError
from .client import AsyncEdgeClient, Status
from .client_settings import ClientArguments, GenerationArguments
from .events import Event, Result, TextDelta
from .gamma.figures import Figures
from .prompt import Prompt
from .stream import AsyncStream

__all__ = ["EdgeClient", "Stream"]

T = TypeVar("T")


class EdgeClient:
    """Generates with a verifier, guessed ahead by a draft on this device.

    Takes what :class:`~.client.AsyncEdgeClient` takes. Safe to use from several threads; each call blocks its own.
    """

    def __init__(self, url: str | Sequence[str], **options: Unpack[ClientArguments]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="draftwire-edge", daemon=True)
        self._thread.start()
        self._closed = False
        self._guard = threading.Lock()
        try:
            self._client = self._run(_construct(url, options))
        except BaseException:
            self._stop_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerationArguments]) -> Result:
        """Generate to the end; see :meth:`.client.AsyncEdgeClient.stream` for the arguments."""
        return self._run(self._client.generate(prompt, **options))

    def stream(self, prompt: Prompt, **options: Unpack[GenerationArguments]) -> Stream:
        """A generation as a context manager: ``with client.stream(prompt) as stream``."""
        return Stream(self, self._client.stream(prompt, **options))

    def wait_for_draft(self) -> Status:
        """Wait until the draft is loaded, or known to be unusable."""
        return self._run(self._client.wait_for_draft())

    def ping(self) -> float:
        """One round trip to the verifier, in seconds."""
        return self._run(self._client.ping())

    @property
    def figures(self) -> Figures:
        """What this device has measured; see :attr:`.client.AsyncEdgeClient.figures`."""
        return self._client.figures

    @property
    def status(self) -> Status:
        """Whether the draft is in use, and if not, why."""
        return self._client.status

    def close(self) -> None:
        """Close the connection and free the draft; calls still waiting in other threads end with an error."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            ending = asyncio.run_coroutine_threadsafe(_shut_down(self._client), self._loop)
        try:
            ending.result()
        finally:
            self._stop_loop()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._closed

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop thread; an interrupted caller cancels it."""
        with self._guard:  # a call either gets in before the client closes, and is ended by that, or is refused
            if self._closed or threading.current_thread() is self._thread:
                work.close()
                problem = "is closed; make a new one" if self._closed else "must not be called from its own thread"
                raise InvalidParameterError("client", problem)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLostError("the client was closed; what was committed has been delivered") from None
        except BaseException:
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Stream:
    """A generation in progress; iterate it for events, or :attr:`text_stream` for text."""

    def __init__(self, client: EdgeClient, stream: AsyncStream) -> None:
        self._client = client
        self._stream = stream

    def __enter__(self) -> Self:
        self._client._run(self._stream.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the generation; fine when it has ended already."""
        if not self._client.closed:
            self._client._run(self._stream.close())

    def __iter__(self) -> Iterator[Event]:
        events = self._stream.__aiter__()
        while True:
            try:
                yield self._client._run(_next(events))
            except StopAsyncIteration:
                return

    @property
    def text_stream(self) -> Iterator[str]:
        """The answer's text as it grows."""
        return (event.text for event in self if isinstance(event, TextDelta) and event.text)

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._stream.seed

    def get_final_result(self) -> Result:
        """The result, once the generation has ended; raises what it failed with."""
        return self._stream.result or self._client._run(self._stream.get_final_result())

    def partial_result(self) -> Result:
        """What was committed so far; after a failure, everything that was committed before it."""
        return self._stream.partial_result()


async def _construct(url: str | Sequence[str], options: ClientArguments) -> AsyncEdgeClient:
    return AsyncEdgeClient(url, **options)


async def _shut_down(client: AsyncEdgeClient) -> None:
    """Close the client, then end whatever else runs on its loop, so that no caller waits for a loop that stands."""
    try:
        await client.close()
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()


async def _next(events: Any) -> Event:
    event: Event = await events.__anext__()
    return event
