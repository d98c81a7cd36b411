"""A verifier with four times the work it can do: what is taken is finished as fast as ever, and the loop still answers.

Times are printed, not judged: they are the machine's. A ratio within one run is judged where it is long enough.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from draftwire.edge_client import AsyncEdgeClient
from draftwire.protocol.errors import BusyError

from ..grace import GRACE, wait_for
from ..integration.verifier_process import port_of, serving, serving_table

PLACES, LINE = 8, 8
USERS = 12


@dataclass
class Level:
    """What came of one load."""

    answers: int = 0
    busy: int = 0
    latencies: list[float] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    told_to_wait: list[float | None] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        """Answers a second."""
        return self.answers / self.seconds

    def told(self, name: str) -> str:
        """In a line."""
        answers, health = percentile(self.latencies, 0.99) * 1000, percentile(self.health, 0.99) * 1000
        return (
            f"{name:>10}: {self.goodput:6.2f} answers/s, {self.busy} busy, "
            f"p99 of answers {answers:.0f} ms, of /healthz {health:.1f} ms"
        )


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else 0.0


class Crowd:
    """Users with a connection each, who ask whenever it is their turn."""

    def __init__(self, url: str, *, tokens: int) -> None:
        self._tokens = tokens
        self._clients = [AsyncEdgeClient(url, wait_when_busy=False) for _ in range(USERS)]
        self._random = random.Random(2)
        self._asked = 0

    async def ask(self, level: Level) -> None:
        self._asked += 1
        client = self._clients[self._asked % USERS]
        prompt = [self._random.randrange(2, 24) for _ in range(30)]
        began = time.monotonic()
        try:
            result = await wait_for(client.generate(prompt, max_tokens=self._tokens, ignore_eos=True))
        except BusyError as error:
            level.busy += 1
            level.told_to_wait.append(error.retry_after)
            return
        assert len(result.token_ids) == self._tokens
        level.answers += 1
        level.latencies.append(time.monotonic() - began)

    async def closed(self, seconds: float) -> Level:
        """As many at a time as there are places: what the verifier can do."""
        level, until = Level(), time.monotonic() + seconds

        async def user() -> None:
            while time.monotonic() < until:
                await self.ask(level)

        began = time.monotonic()
        await asyncio.gather(*(user() for _ in range(PLACES)))
        level.seconds = time.monotonic() - began
        return level

    async def open(self, rate: float, seconds: float) -> Level:
        """So many requests a second, whatever becomes of them."""
        level, tasks = Level(), []
        began = next_at = time.monotonic()
        while time.monotonic() < began + seconds:
            await asyncio.sleep(max(0.0, next_at - time.monotonic()))
            tasks.append(asyncio.create_task(self.ask(level)))
            next_at += self._random.expovariate(rate)
        await asyncio.gather(*tasks)
        level.seconds = time.monotonic() - began
        return level

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))


async def watch_health(port: int, level: Level) -> None:
    """How long the event loop takes to answer, all the while."""
    while True:
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert b" 200 " in await reader.readline()
            level.health.append(time.monotonic() - began)
        finally:  # it may be told to end at any moment
            writer.close()
        await writer.wait_closed()
        await asyncio.sleep(0.02)


async def watched(port: int, run: asyncio.Task[Level]) -> Level:
    seen = Level()
    watcher = asyncio.create_task(watch_health(port, seen))
    level = await run
    watcher.cancel()
    await asyncio.wait([watcher])
    level.health = seen.health
    return level


@contextmanager
def verifier(model: Path | None) -> Iterator[str]:
    """One with so many places, whose steps take long enough for this process to ask four times too much of it."""
    if model is None:
        with serving_table("--step-ms", "15", "--waiting", str(LINE)) as (process, url):
            yield url
            assert process.poll() is None
        return
    options = ["--threads", "1", "--max-streams", str(PLACES), "--max-waiting", str(LINE), "--wait-seconds", "5"]
    options += ["--kv-memory", "256M", "--dtype", "bfloat16"]
    with serving(str(model), *options, quiet=True) as (process, url):
        yield url
        assert process.poll() is None


async def test_four_times_the_load(demo_target_folder: Path, soaking: bool) -> None:
    # Short answers, so that those that are in line at the end of a short time are few beside all that came.
    seconds, tokens = (60.0, 40) if soaking else (1.5, 20)
    with verifier(demo_target_folder if soaking else None) as url:
        port, crowd = port_of(url), Crowd(url, tokens=tokens)
        await asyncio.wait_for(crowd.closed(seconds / 10), GRACE)
        full = await watched(port, asyncio.create_task(crowd.closed(seconds)))
        over = await watched(port, asyncio.create_task(crowd.open(4 * full.goodput, seconds)))
        await crowd.close()
    print()
    print(full.told("full"))
    print(over.told("four times"))
    print(f"goodput at four times the load: {over.goodput / full.goodput:.2f} of what it was")
    assert full.busy == 0
    assert over.busy > over.answers  # of four requests there is work for one
    assert all(seconds is not None and seconds >= 1 for seconds in over.told_to_wait)
    if soaking:
        assert over.goodput >= 0.9 * full.goodput
