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

from ..integration.harness import wait_for
from ..integration.verifier_process import serving
from .resources import resources_of

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
        client = AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}")
        with contextlib.suppress(DraftwireError):
            if stage == 1:
                await client.connect()
                relay.cut()
            else:
                prompt = PROMPT * (100 if stage == 2 else 1)
                async with client.stream(prompt, max_tokens=2000, ignore_eos=True) as stream:
                    if stage == 3:
                        await anext(aiter(stream))
                    relay.cut()
                    await stream.get_final_result()
        await client.close()


async def test_nothing_of_those_who_vanish_stays(tiny_model: Path, soaking: bool) -> None:
    cycles = 500 if soaking else 60
    random_ = random.Random(1)
    with serving(str(tiny_model), "--threads", "1", "--kv-memory", "16M", quiet=True) as (process, url):
        port = int(url.rsplit(":", 1)[1])
        async with AsyncEdgeClient(url) as honest:
            expected = await wait_for(honest.generate(PROMPT, max_tokens=50, ignore_eos=True))
            for _ in range(20):  # so that what is loaded and cached once is there
                await vanish(port, random_)
            await settled(honest)
            before = resources_of(process.pid)
            for _ in range(cycles):
                await vanish(port, random_)
            again = await settled(honest)
            assert again == expected.token_ids
            while resources_of(process.pid).files > before.files:  # closed as soon as the loop has heard of it
                await settled(honest)
        after = resources_of(process.pid)
        print(f"{cycles} cycles: memory {before.memory} to {after.memory} bytes, files {before.files} to {after.files}")
        assert after.files <= before.files
        assert after.threads <= before.threads
        assert after.memory < before.memory * 1.05 + 4e6  # the allocator's own; a leaked stream's KV is 0.5 MB


async def settled(client: AsyncEdgeClient) -> tuple[int, ...]:
    """What the verifier says to an honest client once those before it are gone."""
    return (await wait_for(client.generate(PROMPT, max_tokens=50, ignore_eos=True))).token_ids
