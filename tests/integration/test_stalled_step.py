"""A step of the target that does not end: who watches is told, and all that needs no step goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from draftwire.cloud_verifier.service.peer import Peer
from draftwire.edge_client import AsyncEdgeClient, transport

from ..grace import GRACE, wait_for
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import HeldTarget, reference_tokens

PROMPT = [1, 7, 3]
STALL_SECONDS = 0.2
PINGS = 1.0
"""Seconds between pings, and for each to be answered: the stall outlasts both."""


class Probe:
    """Asks a verifier how it is."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url.replace("ws", "http", 1)

    async def ask(self, path: str) -> tuple[int, str]:
        """Status and words."""
        async with self._session.get(self._url + path) as response:
            return response.status, await response.text()

    async def until(self, path: str, status: int) -> str:
        """Ask until it says so; returns its words."""
        async with asyncio.timeout(GRACE):
            while True:
                found, words = await self.ask(path)
                if found == status:
                    return words
                await asyncio.sleep(0.001)


@asynccontextmanager
async def probe(url: str) -> AsyncIterator[Probe]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GRACE)) as session:
        yield Probe(session, url)


async def answered(verifier: RunningVerifier, count: int) -> tuple[int, ...]:
    """An answer on a connection of its own, which must last."""
    async with AsyncEdgeClient(verifier.url, reconnect_seconds=0) as client:
        return (await client.generate(PROMPT, max_tokens=count, seed=count, temperature=0.8)).token_ids


async def test_a_stall_makes_it_unready_and_takes_nothing_else_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pings are due and answered several times in it, both ways; whoever comes meanwhile is let in, and served then."""
    pongs = 0
    hear_pong = Peer.pong

    def count_pong(peer: Peer) -> None:
        nonlocal pongs
        pongs += 1
        hear_pong(peer)

    monkeypatch.setattr(transport, "_PING_INTERVAL", PINGS)
    monkeypatch.setitem(Peer.__init__.__kwdefaults__, "ping_interval", PINGS)
    monkeypatch.setattr(Peer, "pong", count_pong)
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with running_verifier(target, stall_seconds=STALL_SECONDS) as verifier, probe(verifier.url) as health:
        assert await health.ask("/readyz") == (200, "ready\n")
        first = asyncio.create_task(answered(verifier, 30))
        await target.until(lambda: target.entered == 1)
        stalled_at = time.monotonic()
        assert str(STALL_SECONDS) in await health.until("/readyz", 503)
        second = asyncio.create_task(answered(verifier, 20))
        await verifier.until_inside(2)
        while pongs < 4 or time.monotonic() < stalled_at + 2.5 * PINGS:  # an unanswered ping would have ended it by now
            assert await health.ask("/healthz") == (200, "ok\n")
            assert (await health.ask("/readyz"))[0] == 503
            await asyncio.sleep(0.02)
        assert (target.entered, target.steps) == (1, 0)
        assert not first.done()
        assert not second.done()
        target.let_go()
        assert await health.until("/readyz", 200) == "ready\n"
        for answer, count in ((first, 30), (second, 20)):
            expected = reference_tokens(target, PROMPT, count, temperature=0.8, seed=count)
            assert await wait_for(answer) == expected
