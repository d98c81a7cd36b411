"""Garbage from many clients at once for a while: honest streams come out exact, and nothing of it stays.

``DRAFTWIRE_SOAK`` makes it last a quarter of so many minutes, ``DRAFTWIRE_FUZZ_SEED`` brings a run's choices back.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.service.config import Config
from draftwire.cloud_verifier.service.connection import Connection
from draftwire.cloud_verifier.service.crowd import Guest
from draftwire.cloud_verifier.service.http import Call, Reply, Route, json_reply
from draftwire.cloud_verifier.service.peer import Peer
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import Transport
from draftwire.protocol.errors import ConnectionLostError, VerifierError

from ..grace import wait_for
from .door_rig import GuardedVerifier, door_config, guarded_verifier
from .garbage import Garbage
from .table_targets import HeldTarget, reference_tokens

SECONDS = 15.0 * float(os.environ.get("DRAFTWIRE_SOAK", "0")) or 4.0
ATTACKERS = 6
HONEST: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 1234},
    {"temperature": 0.8, "seed": 7, "top_p": 0.9, "repetition_penalty": 1.2},
)


class Run:
    """Attackers and honest clients, and what became of them."""

    def __init__(self, verifier: GuardedVerifier, seed: int, until: float) -> None:
        self.verifier = verifier
        self.until = until
        self.done: Counter[str] = Counter()
        self.garbage = Garbage(
            seed,
            vocabulary_size=verifier.target.info.vocabulary_size,
            fingerprint=verifier.target.info.fingerprint,
        )

    async def attack(self) -> None:
        """One hostile client after another."""
        ways: list[Callable[[], Awaitable[None]]] = [self.frames, self.frames, self.websocket, self.http, self.noise]
        while time.monotonic() < self.until:
            way = self.garbage.random.choice(ways)
            with contextlib.suppress(VerifierError, ConnectionError):
                await wait_for(way())
            self.done[way.__name__] += 1

    async def frames(self) -> None:
        """Messages of a WebSocket that is in order itself."""
        leave_rudely = self.garbage.random.random() < 0.3
        transport = await Transport.connect(self.verifier.url)
        listening = asyncio.create_task(self._listen(transport))
        try:
            for frame in self.garbage.conversation():
                await transport.send(frame)
            if not leave_rudely:
                await transport.ping()
        finally:
            await transport.close()
            await listening

    async def _listen(self, transport: Transport) -> None:
        with contextlib.suppress(ConnectionLostError):
            while await transport.receive() is not None:
                self.done["answers"] += 1

    async def websocket(self) -> None:
        """A good handshake, and then whatever."""
        await self._raw(self.garbage.handshake(), self.garbage.websocket_bytes())

    async def http(self) -> None:
        """Requests."""
        await self._raw(*(self.garbage.request() for _ in range(self.garbage.random.randrange(1, 4))))

    async def noise(self) -> None:
        """Bytes that are nothing at all, or a handshake cut short."""
        pick = self.garbage.random
        cut = self.garbage.handshake()[: pick.randrange(200)]
        await self._raw(
            pick.choice([pick.randbytes(pick.randrange(1, 400)), cut, b"\x16\x03\x01" + pick.randbytes(99)])
        )

    async def _raw(self, *pieces: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.verifier.port)
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            if self.garbage.random.random() < 0.7:
                writer.write_eof()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.garbage.random.choice([0.01, 0.2])):
                        await reader.read()
        finally:
            writer.transport.abort()

    async def behave(self, draft: Path, options: dict[str, Any]) -> None:
        """An honest client's streams, each as it would be alone."""
        async with AsyncEdgeClient(self.verifier.url, draft=draft) as client:
            while time.monotonic() < self.until:
                result = await wait_for(client.generate([4, 2], max_tokens=40, **options))
                assert result.token_ids == reference_tokens(self.verifier.target, [4, 2], 40, **options)
                self.done["honest"] += 1


async def echo(call: Call) -> Reply:
    """Something that takes a body."""
    return json_reply({"bytes": len(call.body)})


def held_in_memory() -> Counter[str]:
    """How much of what the server makes for clients nobody has let go of."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in (Connection, Peer, Guest))


@pytest.mark.parametrize("limited", [False, True], ids=["open door", "narrow door"])
@pytest.mark.timeout(SECONDS + 120)
async def test_garbage_harms_nobody_and_leaves_nothing(
    limited: bool, right_draft: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seed = int(os.environ.get("DRAFTWIRE_FUZZ_SEED", random.randrange(1 << 32)))
    print(f"DRAFTWIRE_FUZZ_SEED={seed}")
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    target.let_go()
    narrow = door_config(
        limits={"hello_seconds": 0.2, "idle_seconds": 0.2, "max_prompt_tokens": 30, "max_output_tokens": 100}
    )
    routes = [Route(method="POST", path="/v1/echo", handler=echo)]
    caplog.set_level(logging.INFO)
    before = held_in_memory()
    async with guarded_verifier(narrow if limited else Config(), target=target, routes=routes) as verifier:
        run = Run(verifier, seed, time.monotonic() + SECONDS / 2)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(ATTACKERS):
                tasks.create_task(run.attack())
            for options in HONEST:
                tasks.create_task(run.behave(right_draft, options))
        async with AsyncEdgeClient(verifier.url) as client:
            result = await wait_for(client.generate([4, 2], max_tokens=20))
            assert result.token_ids == reference_tokens(target, [4, 2], 20)
        await target.until(lambda: len(target.closed) == target.opened)
        async with asyncio.timeout(20):
            while verifier.doorkeeper.connections:
                await asyncio.sleep(0.01)
        assert verifier.engine.active_streams == 0
        assert verifier.engine.running
        async with asyncio.timeout(20):  # the task of whoever left last may not have had its last turn
            while not held_in_memory() <= before:
                await asyncio.sleep(0.05)
    print(dict(run.done))
    assert run.done["honest"] >= len(HONEST)
    assert min(run.done[way] for way in ("frames", "websocket", "http", "noise")) > 0
    faults = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert faults == [], seed
