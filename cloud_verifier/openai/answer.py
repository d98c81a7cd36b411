"""An answer in OpenAI's form: whole, or as server-sent events while it grows."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field

from ..service.http import Reply, json_reply
from .choice import Choice
from .endpoint import Endpoint
from .generation import Delta, Generation, GenerationError

__all__ = ["Answer", "EventStream", "whole_reply"]

_KEEP_ALIVE_SECONDS = 15.0
"""Of silence, before a comment tells proxies that the connection lives."""

_STILL_AT_WORK = b": still at work\n\n"
_EVENT_STREAM = "text/event-stream; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What holds for all of an answer.

    Attributes:
        endpoint: whose form it has.
        model: that answers.
        seed: of the first choice of each prompt.
        prompts: how many tokens each prompt has.
        choices: in order, those of the first prompt first.
        include_usage: end the stream with its usage.
    """

    endpoint: Endpoint
    model: str
    seed: int
    prompts: Sequence[int]
    choices: Sequence[Choice]
    include_usage: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    created: int = field(default_factory=lambda: int(time.time()))

    def usage(self, generation: Generation) -> dict[str, object]:
        """Tokens so far. A prompt with several choices counts once."""
        samples = len(self.choices) // len(self.prompts)
        prompt, completion = sum(self.prompts), sum(choice.tokens for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": sum(generation.cached[::samples])},
        }

    def envelope(self, kind: str, choices: Sequence[dict[str, object]]) -> dict[str, object]:
        """What every object of the answer has; ``draftwire`` is an addition to OpenAI's form."""
        return {
            "id": f"{self.endpoint.id_prefix}{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": list(choices),
            "draftwire": {"seed": self.seed},
        }

    def chunk(self, *choices: dict[str, object]) -> dict[str, object]:
        """A piece of a stream."""
        chunk = self.envelope(self.endpoint.chunk_object, choices)
        return {**chunk, "usage": None} if self.include_usage else chunk


async def whole_reply(answer: Answer, generation: Generation) -> Reply:
    """Wait for the end of an answer.

    Raises:
        GenerationError: a stream has failed.
    """
    texts: list[list[str]] = [[] for _ in answer.choices]
    while not generation.done:
        for delta in await generation.more():
            texts[delta.choice.index].append(delta.text)
    endpoint = answer.endpoint
    choices = [endpoint.whole(choice, "".join(text)) for choice, text in zip(answer.choices, texts, strict=True)]
    return json_reply({**answer.envelope(endpoint.whole_object, choices), "usage": answer.usage(generation)})


class EventStream(AsyncIterator[bytes]):
    """A growing answer as server-sent events. Closing it ends its streams, also where it was never begun.

    Args:
        answer: what it is.
        generation: started.
        keep_alive: seconds of silence before a comment.
    """

    def __init__(self, answer: Answer, generation: Generation, *, keep_alive: float = _KEEP_ALIVE_SECONDS) -> None:
        self._answer = answer
        self._generation = generation
        self._keep_alive = keep_alive
        self._events = self._make()

    def reply(self) -> Reply:
        """As a reply; proxies are asked not to hold it back."""
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return Reply(body=self, content_type=_EVENT_STREAM, headers=headers)

    async def __anext__(self) -> bytes:
        """The next events."""
        return await anext(self._events)

    async def aclose(self) -> None:
        """Nobody listens any more."""
        self._generation.close()
        await self._events.aclose()

    async def _make(self) -> AsyncGenerator[bytes, None]:
        answer, generation = self._answer, self._generation
        openings = [answer.endpoint.opening(choice) for choice in answer.choices]
        for opening in openings:
            if opening is not None:
                yield _event(answer.chunk(opening))
        try:
            while not generation.done:
                deltas = await generation.more(within=self._keep_alive)
                events = b"".join(map(self._chunks, deltas)) if deltas else _STILL_AT_WORK
                if events:
                    yield events
        except GenerationError as error:  # the status has been sent; clients look for this
            yield _event(error.problem.body)
            return
        if answer.include_usage:
            yield _event({**answer.chunk(), "usage": answer.usage(generation)})
        yield b"data: [DONE]\n\n"

    def _chunks(self, delta: Delta) -> bytes:
        if not (delta.text or delta.ended):
            return b""
        pieces = self._answer.endpoint.pieces(delta.choice, delta.text, delta.ended)
        return b"".join(_event(self._answer.chunk(piece)) for piece in pieces)


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"
