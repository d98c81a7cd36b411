"""Clients that connect and vanish, hundreds of times, at every stage: nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from pathlib import Path

import pytest
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.errors import DraftwireError

from ..grace import wait_for
from ..integration.verifier_process import port_of, serving
from .resources import nothing_left, resources_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PROMPT = [5, 6, 7]


async def vanish(port: int, random_: random.Random) -> None:
    """Connect, ask for something, and be gone: before the handshake, in it, while the prompt is read, or later."""
    stage = random_.randrange(4)
    if stage == 0:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/verify HTTP/1.1\r\nHost: x\r\n"[: random_.randrange(40)])
        writer.transport.abort()
        return
    async with WanRelay("127.0.0.1", port, delay=0.0) as relay:
        client = AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", reconnect_seconds=0.0)
        with contextlib.suppress(DraftwireError):
            await client.connect()
            if stage == 1:
                relay.cut()
            else:
                prompt = PROMPT * (100 if stage == 2 else 1)
                async with client.stream(prompt, max_tokens=2000, ignore_eos=True) as stream:
                    if stage == 3:
                        await anext(aiter(stream))
                    await asyncio.sleep(0.01 * random_.random())  # any moment of opening, reading or decoding
                    relay.cut()
                    await stream.get_final_result()
        await client.close()


async def test_nothing_of_those_who_vanish_stays(tiny_model: Path, soaking: bool) -> None:
    cycles = 500 if soaking else 60
    random_ = random.Random(1)
    options = ("--threads", "1", "--kv-memory", "16M", "--prefix-cache", "0")
    with serving(str(tiny_model), *options, quiet=True) as (process, url):
        port = port_of(url)
        expected = await said_to_an_honest_client(url)
        for _ in range(60):  # so that what is loaded and cached once is there
            await vanish(port, random_)
        await nothing_left(url)
        before = resources_of(process.pid)
        for _ in range(cycles):
            await vanish(port, random_)
        assert await said_to_an_honest_client(url) == expected
        await nothing_left(url)
        after = resources_of(process.pid)
    grown = after.memory / before.memory - 1
    print(f"{cycles} cycles: memory {grown:+.2%}, files {before.files} to {after.files}")
    assert after.files <= before.files
    assert after.threads <= before.threads
    assert grown < 0.02


async def said_to_an_honest_client(url: str) -> tuple[int, ...]:
    async with AsyncEdgeClient(url) as client:
        return (await wait_for(client.generate(PROMPT, max_tokens=50, ignore_eos=True))).token_ids
