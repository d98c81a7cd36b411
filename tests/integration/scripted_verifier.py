"""An end that is no verifier: it plays a script."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Target
from draftwire.protocol.codes import PROTOCOL_VERSION, SUBPROTOCOL, Capability, Role
from draftwire.protocol.messages import Limits, Welcome
from draftwire.protocol.session import Session

from .table_targets import endless_table

__all__ = ["scripted_verifier", "serving", "welcome"]

Script = Callable[[web.WebSocketResponse, Session], Awaitable[None]]


@asynccontextmanager
async def scripted_verifier(
    script: Script, *, subprotocol: str | None = SUBPROTOCOL, target: Target | None = None
) -> AsyncIterator[str]:
    """A WebSocket server that plays ``script`` to each client, and then waits for it to leave; yields its URL."""

    async def verify(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=(subprotocol,) if subprotocol else ())
        await socket.prepare(request)
        await script(socket, Session(Role.VERIFIER))
        async for _ in socket:
            pass
        return socket

    async def tokenizer(_: web.Request) -> web.Response:
        held = target or endless_table()
        return web.json_response({"tokenizer": held.tokenizer_json, "chat_template": None})

    app = web.Application()
    app.router.add_get("/v1/verify", verify)
    app.router.add_get("/v1/tokenizer", tokenizer)
    async with serving(app) as url:
        yield url.replace("http", "ws")


@asynccontextmanager
async def serving(app: web.Application) -> AsyncIterator[str]:
    """Serve any aiohttp application; yields its URL."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def welcome(target: TableTarget, **changes: Any) -> Welcome:
    """The WELCOME of a verifier of ``target``."""
    info = target.info
    fields: dict[str, Any] = {
        "version": PROTOCOL_VERSION,
        "capabilities": Capability.SPARSE_Q | Capability.PREFIXES,
        "fingerprint": info.fingerprint,
        "target": info.name,
        "vocabulary_size": info.vocabulary_size,
        "eos_ids": info.eos_ids,
        "limits": Limits(max_context=4096, max_streams=4, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64),
    }
    return Welcome(**{**fields, **changes})
