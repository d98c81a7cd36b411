"""A verifier behind a door that is set by hand, in this process and on a real socket."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.cloud_verifier.guardrails.guardrails import Guardrails
from draftwire.cloud_verifier.service.config import Config, DoorLimits, KeyRules
from draftwire.cloud_verifier.service.door import Door
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.http import Route
from draftwire.cloud_verifier.service.keys import hash_key
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.target import Target
from draftwire.protocol.codes import SUBPROTOCOL
from draftwire.protocol.messages import Limits

from ..grace import GRACE
from .running_verifier import RunningVerifier
from .table_targets import HeldTarget, endless_table

__all__ = ["Answer", "GuardedVerifier", "ask", "bearer", "door_config", "guarded_verifier", "knock", "upgrade_head"]

_UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": SUBPROTOCOL,
}


@dataclass(frozen=True, slots=True)
class GuardedVerifier(RunningVerifier):
    """A verifier, its doorkeeper, and why anybody was refused so far."""

    doorkeeper: Doorkeeper
    refused: list[str]


def door_config(*, keys: Mapping[str, Sequence[str]] | None = None, key_rules: Any = None, **config: Any) -> Config:
    """A configuration; ``keys`` by name as clients show them, everything in ``limits`` by its own name."""
    rules = {
        name: KeyRules(digests=tuple(map(hash_key, each)), **(key_rules or {}).get(name, {}))
        for name, each in (keys or {}).items()
    }
    return Config(keys=rules, limits=DoorLimits(**config.pop("limits", {})), **config)


@asynccontextmanager
async def guarded_verifier(
    config: Config | None = None,
    *,
    target: Target | None = None,
    routes: Sequence[Route] = (),
    make_routes: Callable[[Engine, Target, Limits], Sequence[Route]] | None = None,
    guardrails: Guardrails | None = None,
    scheduler: Scheduler | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> AsyncIterator[GuardedVerifier]:
    """Serve until the block ends, in TLS where ``tls`` gives contexts; ``make_routes`` makes routes that need the
    engine.

    The rules about drafts are those of ``config`` unless other ``guardrails`` are given.
    """
    target = target or endless_table()
    limits = Limits(max_context=4000, max_streams=16, max_message_bytes=65536, max_draft_tokens=64, max_backlog=64)
    refused: list[str] = []
    door = Door(lambda: config or Config(), refused=refused.append)
    doorkeeper, guardrails = door.doorkeeper, guardrails or door.guardrails
    engine = Engine(
        target, limits=limits, scheduler=scheduler, observer=guardrails.observer, speculation=guardrails.decide
    )
    engine.start()
    more = [*routes, *(make_routes(engine, target, limits) if make_routes else ())]
    server = VerifierServer(engine, target, limits=limits, doorkeeper=doorkeeper, routes=more)
    try:
        async with server.listening("127.0.0.1", 0, tls=tls) as port:
            url = f"{'wss' if tls is not None else 'ws'}://127.0.0.1:{port}"
            try:
                yield GuardedVerifier(url, port, engine, target, limits, doorkeeper, refused)
            finally:
                if isinstance(target, HeldTarget):
                    target.let_go()
    finally:
        engine.stop()


# --- plain HTTP, byte by byte ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """A response; names of ``headers`` are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """What the body says."""
        return json.loads(self.body)


def bearer(key: str) -> dict[str, str]:
    """The header that shows a key."""
    return {"Authorization": f"Bearer {key}"}


async def ask(
    verifier: RunningVerifier,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str | None] | None = None,
    body: bytes = b"",
) -> Answer:
    """One request on a connection of its own; a header that is None is left out."""
    fields = {"Host": f"127.0.0.1:{verifier.port}", "Connection": "close", **(headers or {})}
    if body:
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value is not None)]
    reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port)
    try:
        async with asyncio.timeout(GRACE):
            writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            first, *rest = head.decode().split("\r\n")
            status = int(first.split()[1])
            found = dict(_field(line) for line in rest if line)
            content = await reader.readexactly(int(found.get("content-length", 0)))
    finally:
        writer.close()
    return Answer(status, found, content)


def _field(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name.lower(), value


async def knock(
    verifier: RunningVerifier, path: str = "/v1/verify", *, headers: Mapping[str, str | None] | None = None
) -> Answer:
    """Ask for a WebSocket, and leave whatever the answer is."""
    return await ask(verifier, path, headers={**_UPGRADE, **(headers or {})})


def upgrade_head(*more: str) -> bytes:
    """A request for a WebSocket, with ``more`` header lines, for whoever speaks it byte by byte."""
    fields = [f"{name}: {value}" for name, value in _UPGRADE.items()]
    return "\r\n".join(["GET /v1/verify HTTP/1.1", "Host: x", *fields, *more, "", ""]).encode()
