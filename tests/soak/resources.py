"""What a process holds, read from where the kernel tells, and what a verifier says of itself."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from ..grace import GRACE
from ..integration.scrape import Scrape, fetch


@dataclass(frozen=True, slots=True)
class Resources:
    """Resident bytes that are the process's own (no mapped files), open files, threads."""

    memory: int
    files: int
    threads: int


def resources_of(pid: int) -> Resources:
    """Of a running process."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    memory = int(fields["RssAnon"].split()[0]) * 1024
    return Resources(memory, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(fields["Threads"]))


@dataclass(frozen=True, slots=True)
class Load:
    """Streams with a place and without, connections, and the bytes of keys and values that are held."""

    running: int
    waiting: int
    connections: int
    kv_bytes: int


async def load_of(url: str) -> Load:
    """By the verifier's own metrics."""
    _, text = await asyncio.to_thread(fetch, url.replace("ws", "http", 1) + "/metrics")
    names = ("num_requests_running", "num_requests_waiting", "connections", "kv_cache_used_bytes")
    return Load(*(int(Scrape(text).value(name)) for name in names))


async def nothing_left(url: str) -> None:
    """Wait until all that clients held has been given back, as it is once their leaving was heard of."""
    async with asyncio.timeout(GRACE):
        while (load := await load_of(url)) != Load(0, 0, 0, 0):
            assert load.running >= 0
            await asyncio.sleep(0.05)
