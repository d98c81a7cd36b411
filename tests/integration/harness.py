"""What the integration tests share: a verifier in this process, a bare client, targets that can be held."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from aiohttp import web
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.scheduler import Plan, Scheduler
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.operations.operations import Operations
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.health import Health
from draftwire.cloud_verifier.service.http import Route
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block, Target
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import Transport
from draftwire.protocol.codes import PROTOCOL_VERSION, SUBPROTOCOL, Capability, Role
from draftwire.protocol.messages import (
    Commit,
    End,
    Error,
    Hello,
    Limits,
    Message,
    Open,
    Policy,
    Welcome,
)
from draftwire.protocol.noise import coupled_choice
from draftwire.protocol.sampling import SamplingParams, TokenHistory, greedy_token, process_logits
from draftwire.protocol.session import Session
from numpy.typing import NDArray

__all__ = [
    "GRACE",
    "HeldTarget",
    "PacedTarget",
    "PatientScheduler",
    "RawClient",
    "RecordingTarget",
    "RunningVerifier",
    "endless_table",
    "honest_stream",
    "reference_tokens",
    "running_verifier",
    "scripted_verifier",
    "serving",
    "wait_for",
    "welcome",
]

T = TypeVar("T")

GRACE = 60.0
"""Seconds that nothing here takes unless it hangs."""


# --- a verifier ---------------------------------------------------------------------------------------------------


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


def check_one_line(error: BaseException) -> None:
    """An error for people: one line, and no trace."""
    assert str(error)
    assert "\n" not in str(error)
    assert "Traceback" not in str(error)


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


# --- targets ------------------------------------------------------------------------------------------------------


def endless_table(**options: Any) -> TableTarget:
    """A table target whose text never ends by itself."""
    return TableTarget(**{"vocabulary_size": 24, "seed": 5, "eos_bias": -1e4, **options})


class PacedTarget(TableTarget):
    """A table target whose steps take ``seconds``, as a model's do, so that drafts can be in time."""

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        time.sleep(self._seconds)
        return super().step(blocks)


class RecordingTarget(TableTarget):
    """A table target that counts the tokens it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fed = 0

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self.fed += sum(len(block.tokens) for block in blocks)
        return super().step(blocks)


class HeldTarget(TableTarget):
    """A table target whose steps wait for leave. ``closed`` lists the slots freed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._leave = threading.Semaphore(0)
        self._free = threading.Event()
        self._changed = threading.Condition()
        self.entered = 0
        self.steps = 0
        self.opened = 0
        self.closed: list[int] = []

    def allow(self, steps: int) -> None:
        """Let so many steps happen."""
        for _ in range(steps):
            self._leave.release()

    def let_go(self) -> None:
        """Let every step happen from now on."""
        self._free.set()
        self._leave.release()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, checked whenever a step begins or ends or a stream comes or goes."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(holds, GRACE)

        assert await asyncio.to_thread(wait), "it never came true"

    async def step_until(self, holds: Callable[[], bool]) -> None:
        """Let one step after another happen until something holds; some stream must be open all the while."""
        while not holds():
            entered = self.entered
            self.allow(1)
            await self.until(lambda before=entered: self.entered > before or holds())  # type: ignore[misc]

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self._note("entered")
        if not self._free.is_set():
            self._leave.acquire()
        rows = super().step(blocks)
        self._note("steps")
        return rows

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """See :meth:`Target.open`."""
        super().open(stream, capacity, room=room)
        self._note("opened")

    def close(self, stream: int) -> None:
        """See :meth:`Target.close`."""
        super().close(stream)
        with self._changed:
            self.closed.append(stream)
            self._changed.notify_all()

    def _note(self, counter: str) -> None:
        with self._changed:
            setattr(self, counter, getattr(self, counter) + 1)
            self._changed.notify_all()


def reference_tokens(
    target: TableTarget, prompt: Sequence[int], count: int, *, seed: int = 0, **params: Any
) -> tuple[int, ...]:
    """What the target alone generates, greedy or coupled, by the definition and without an engine."""
    sampling = SamplingParams(**params)
    tokens, history = list(prompt), TokenHistory(prompt)
    while len(tokens) < len(prompt) + count:
        logits = target.logits_after(tokens[-2:])
        if sampling.greedy:
            token = greedy_token(logits, sampling, history)
        else:
            token = coupled_choice(process_logits(logits, sampling, history), seed, len(tokens))
        tokens.append(token)
        history.append(token)
        if token in target.info.eos_ids:
            break
    return tuple(tokens[len(prompt) :])


# --- a bare client ------------------------------------------------------------------------------------------------


class RawClient:
    """Speaks the protocol frame by frame, and can break it. An async context manager."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.session = Session(Role.CLIENT)
        self.bytes_up: list[int] = []
        self.bytes_down: list[int] = []

    @classmethod
    async def connect(
        cls, verifier: RunningVerifier, *, fingerprint: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Connect and shake hands; by default with the target's own fingerprint."""
        client = cls(await Transport.connect(verifier.url, headers=headers))
        await client.send(
            Hello(
                version=PROTOCOL_VERSION,
                capabilities=Capability.SPARSE_Q | Capability.PREFIXES,
                fingerprint=fingerprint or verifier.target.info.fingerprint,
                agent="test",
            )
        )
        assert isinstance(await client.receive(), Welcome)
        return client

    async def send(self, message: Message) -> None:
        """Send a message that the session allows."""
        await self.send_raw(self.session.send(message))

    async def send_raw(self, frame: bytes | str) -> None:
        """Send whatever it is."""
        await self.transport.send(frame)  # type: ignore[arg-type]

    async def receive(self) -> Message:
        """The next message."""
        async with asyncio.timeout(GRACE):
            messages = self.session.receive(await self.transport.receive())
        (message,) = messages
        return message

    async def open(self, tokens: Sequence[int], **options: Any) -> int:
        """Open a stream; returns its id. OPENED is left to be received."""
        stream = self.session.next_stream
        fields: dict[str, Any] = {
            "prompt_length": len(tokens),
            "params": SamplingParams(),
            "max_tokens": 8,
            "seed": 0,
            **options,
        }
        await self.send(Open(stream=stream, token_ids=tuple(tokens), **fields))
        return stream

    async def follow(self, stream: int) -> tuple[list[int], End | Error]:
        """Tokens of a stream without drafts, until it is over; other streams' messages are skipped."""
        return (await self.follow_all(stream))[stream]

    async def follow_all(self, *streams: int) -> dict[int, tuple[list[int], End | Error]]:
        """The same of several at once, until all of them are over."""
        tokens: dict[int, list[int]] = {stream: [] for stream in streams}
        ended: dict[int, End | Error] = {}
        while len(ended) < len(tokens):
            match await self.receive():
                case Commit(stream=stream) as message if stream in tokens:
                    assert message.accepted == 0
                    assert message.token is not None
                    tokens[stream].append(message.token)
                case (End(stream=stream) | Error(stream=stream)) as message if stream in tokens:
                    ended[stream] = message
        return {stream: (tokens[stream], ended[stream]) for stream in streams}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transport.close()


async def wait_for(awaitable: Awaitable[T]) -> T:
    """Await with a net below."""
    async with asyncio.timeout(GRACE):
        return await awaitable


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


# --- an end that is no verifier -----------------------------------------------------------------------------------

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
