"""A step of the target that takes half a minute: health, pings and newcomers are answered all the while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field

import aiohttp
from draftwire.edge_client import AsyncEdgeClient

from ..grace import GRACE, wait_for
from ..integration.table_targets import endless_table, reference_tokens
from ..integration.verifier_process import serving_table

STALL = 30.0
ANSWER_WITHIN = 1.0
"""Seconds: what users of such a service may expect of it in a stall."""


@dataclass
class Watch:
    """How long each answer took, in seconds."""

    health: list[float] = field(default_factory=list)
    pings: list[float] = field(default_factory=list)
    newcomers: list[float] = field(default_factory=list)
    unready: int = 0

    def told(self) -> str:
        """In a line."""
        worst = {
            name: f"{max(getattr(self, name)) * 1000:.1f} ms of {len(getattr(self, name))}"
            for name in ("health", "pings", "newcomers")
        }
        return f"at most: {worst}; unready {self.unready} times"


async def timed(action: Awaitable[None], into: list[float]) -> None:
    began = time.monotonic()
    await wait_for(action)
    into.append(time.monotonic() - began)


async def test_a_step_of_half_a_minute(soaking: bool) -> None:
    stall = STALL if soaking else 1.5
    with serving_table("--stall", str(stall)) as (process, url):
        assert process.stdout is not None
        async with (
            AsyncEdgeClient(url, reconnect_seconds=0) as client,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=GRACE)) as session,
        ):
            answers = [
                asyncio.create_task(client.generate([1, 7, 3], max_tokens=40, temperature=0.8, seed=seed))
                for seed in range(2)
            ]
            assert await asyncio.to_thread(process.stdout.readline) == "stalled\n"
            watch, until = Watch(), time.monotonic() + 0.9 * stall
            while time.monotonic() < until:
                await timed(ask(session, url, "/healthz", 200), watch.health)
                watch.unready += await status(session, url, "/readyz") == 503
                await timed(ping(client), watch.pings)
                await timed(come_and_go(url), watch.newcomers)
                await asyncio.sleep(0.1)  # a client may ping 300 times a minute
            assert not any(answer.done() for answer in answers)
            results = await wait_for(asyncio.gather(*answers))
            await ask(session, url, "/readyz", 200)
    print(watch.told())
    for seed, result in enumerate(results):
        assert result.token_ids == reference_tokens(endless_table(), [1, 7, 3], 40, temperature=0.8, seed=seed)
    assert watch.unready > 0
    if soaking:
        for times in (watch.health, watch.pings, watch.newcomers):
            assert max(times) < ANSWER_WITHIN


async def status(session: aiohttp.ClientSession, url: str, path: str) -> int:
    async with session.get(url.replace("ws", "http", 1) + path) as response:
        return response.status


async def ask(session: aiohttp.ClientSession, url: str, path: str, expected: int) -> None:
    assert await status(session, url, path) == expected


async def ping(client: AsyncEdgeClient) -> None:
    await client.ping()


async def come_and_go(url: str) -> None:
    """Another connection: it is welcomed, and its ping answered."""
    async with AsyncEdgeClient(url, reconnect_seconds=0) as other:
        assert (await other.connect()).target
        await other.ping()
