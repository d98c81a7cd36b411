"""A verifier in this process, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.scheduler import Plan, Scheduler
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.operations.operations import Operations
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.health import Health
from draftwire.cloud_verifier.service.http import Route
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.target import Target
from draftwire.edge_client import AsyncEdgeClient
from draftwire.protocol.messages import Limits, Policy

from ..grace import GRACE, wait_for
from .table_targets import HeldTarget, reference_tokens

__all__ = ["PatientScheduler", "RunningVerifier", "honest_stream", "running_verifier"]


@dataclass(frozen=True, slots=True)
class RunningVerifier:
    """A verifier that serves on a loopback port, in this process and event loop."""

    url: str
    port: int
    engine: Engine
    target: Any
    limits: Limits
    doorkeeper: Doorkeeper = field(default_factory=Doorkeeper)

    async def until_inside(self, count: int) -> None:
        """Wait until the server knows of so many connections and calls, no more and no less."""
        async with asyncio.timeout(GRACE):
            while self.doorkeeper.connections != count:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running_verifier(
    target: Target,
    *,
    max_streams: int = 64,
    max_context: int | None = None,
    max_message_bytes: int = 64 * 1024,
    max_backlog: int = 64,
    most_waiting: int = 0,
    stall_seconds: float = 30.0,
    scheduler: Scheduler | None = None,
    operations: Operations | None = None,
    doorkeeper: Doorkeeper | None = None,
    routes: Callable[[Engine, Target, Limits], Sequence[Route]] | None = None,
) -> AsyncIterator[RunningVerifier]:
    """Serve ``target`` until the block ends; ``routes`` makes further endpoints."""
    limits = Limits(
        max_context=max_context or target.info.max_context,
        max_streams=max_streams,
        max_message_bytes=max_message_bytes,
        max_draft_tokens=64,
        max_backlog=max_backlog,
    )
    engine = Engine(
        target,
        limits=limits,
        scheduler=scheduler,
        observer=operations.observer if operations is not None else None,
        most_waiting=most_waiting,
        wait_seconds=GRACE,
    )
    engine.start()
    if operations is not None:
        operations.watch(engine)
    more = [*(operations.routes if operations is not None else ()), *(routes(engine, target, limits) if routes else ())]
    doorkeeper = doorkeeper or Doorkeeper()
    health = Health(engine, stall_seconds=stall_seconds)
    server = VerifierServer(engine, target, limits=limits, doorkeeper=doorkeeper, routes=more, health=health)
    runner = web.AppRunner(server.app(), access_log=None, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = int(runner.addresses[0][1])
        yield RunningVerifier(f"ws://127.0.0.1:{port}", port, engine, target, limits, doorkeeper)
    finally:
        if isinstance(target, HeldTarget):
            target.let_go()
        await runner.cleanup()
        engine.stop()


class PatientScheduler(Scheduler):
    """Waits for drafts as long as it takes, where a stream asked for the cost policy; runs ahead of all others.

    So what a step sees is no matter of timing. The last token of a stream is never drafted, so it is not waited for.
    """

    def plan(self, streams: Iterable[VerifierStream], now: float) -> Plan:
        """See :meth:`Scheduler.plan`."""
        return super().plan([stream for stream in streams if _is_ready(stream)], now)


def _is_ready(stream: VerifierStream) -> bool:
    request = stream.request
    waits = request.drafting and request.policy is Policy.COST and stream.remaining > 1
    return not waits or stream.prefilling or bool(stream.proposed())


@asynccontextmanager
async def honest_stream(verifier: RunningVerifier, *, count: int = 150) -> AsyncIterator[None]:
    """A well-behaved client generates meanwhile, on a connection of its own; its text must come out exact."""
    options: dict[str, Any] = {"temperature": 0.9, "seed": 1234}
    async with (
        AsyncEdgeClient(verifier.url) as client,
        client.stream([4, 2], max_tokens=count, **options) as stream,
    ):
        await wait_for(anext(aiter(stream)))  # it is under way
        yield
        result = await wait_for(stream.get_final_result())
    assert result.token_ids == reference_tokens(verifier.target, [4, 2], count, **options)
