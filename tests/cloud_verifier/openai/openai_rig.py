"""An API on an engine over a table target, called without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.service.http import Call, Reply, Visitor
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.messages import Limits

from ...grace import GRACE

__all__ = ["LIMITS", "TEMPLATE", "Caller", "calling", "content", "endless", "events_of"]

LIMITS = Limits(max_context=600, max_streams=8, max_message_bytes=65536, max_draft_tokens=64, max_backlog=24)
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('no role ' + message['role']) }}{% endif %}"
    "{{ message['role'][0] }} {{ message['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}a {% endif %}"
)
"""Needs letters and spaces alone, which a table target of 40 tokens has."""


def endless(*, template: str | None = TEMPLATE, **options: Any) -> TableTarget:
    """A table target with letters, a chat template, and no end of text."""
    target = TableTarget(**{"vocabulary_size": 40, "seed": 3, "eos_bias": -1e4, **options})
    target.chat_template = template
    return target


class Caller:
    """Calls an API's handlers as the server does."""

    def __init__(self, engine: Engine, api: OpenAiApi, *, visitor: Visitor | None = None) -> None:
        self.engine = engine
        self.visitor = visitor or Visitor(request_id="r")
        self._routes = {route.path: route for route in api.routes()}

    async def post(self, path: str, body: Mapping[str, Any] | bytes) -> Reply:
        """Call an endpoint with JSON, or with whatever bytes."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        call = Call(method="POST", path=path, headers={}, body=content, visitor=self.visitor)
        async with asyncio.timeout(GRACE):
            return await self._routes[path].handler(call)

    async def complete(self, **fields: Any) -> dict[str, Any]:
        """A completion that must succeed."""
        return content(await self.post("/v1/completions", fields), 200)

    async def chat(self, **fields: Any) -> dict[str, Any]:
        """A chat completion that must succeed."""
        return content(await self.post("/v1/chat/completions", fields), 200)

    async def refused(self, path: str, body: Mapping[str, Any] | bytes, *, status: int = 400) -> dict[str, Any]:
        """The error of a call that must fail."""
        error = content(await self.post(path, body), status)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        return dict(error)

    async def idle(self) -> None:
        """Until no stream is open."""
        async with asyncio.timeout(GRACE):
            while self.engine.active_streams:
                await asyncio.sleep(0.001)


def content(reply: Reply, status: int) -> dict[str, Any]:
    """The JSON of a whole reply."""
    assert isinstance(reply.body, bytes)
    assert reply.status == status, reply.body
    value = json.loads(reply.body)
    assert isinstance(value, dict)
    return value


def events_of(pieces: Sequence[bytes]) -> list[Any]:
    """The JSON values of server-sent events, ``[DONE]`` among them."""
    lines = b"".join(pieces).decode().split("\n\n")
    assert lines.pop() == ""
    return [json.loads(line[6:]) if line != "data: [DONE]" else "[DONE]" for line in lines if not line.startswith(":")]


@asynccontextmanager
async def calling(
    target: TableTarget | None = None, *, limits: Limits = LIMITS, visitor: Visitor | None = None, **options: Any
) -> AsyncIterator[Caller]:
    """A running engine and its API; ``options`` are the API's."""
    target = target or endless()
    engine = Engine(target, limits=limits)
    engine.start()
    try:
        yield Caller(engine, OpenAiApi(engine, target, limits, **options), visitor=visitor)
    finally:
        await asyncio.to_thread(engine.stop)
