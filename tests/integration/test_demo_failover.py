"""The real pair, and a verifier killed in mid-answer: another one computes what it never saw, and goes on the same."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.edge_client import AsyncEdgeClient, AsyncStream, Result

from ..grace import wait_for
from .running_verifier import running_verifier
from .verifier_process import serving

pytestmark = pytest.mark.demo

COUNT = 32
QUESTION = [{"role": "user", "content": "Write a short story about a robot who learns to paint."}]
KINDS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "coupled": {"temperature": 0.7, "seed": 12}}
OPTIONS = ("--dtype", "float32", "--threads", "1", "--kv-memory", "256M")


async def whole(client: AsyncEdgeClient, kind: str) -> tuple[int, ...]:
    """The answer without a draft and without a loss."""
    return (await wait_for(client.generate(QUESTION, max_tokens=COUNT, **KINDS[kind]))).token_ids


async def test_kill_9_while_drafts_are_at_work(demo_target_folder: Path, demo_draft_folder: Path) -> None:
    """A device for each kind of sampling, both in the middle of their answers."""
    model = str(demo_target_folder)
    target = TransformersTarget.load(model, dtype="float32", threads=1)
    with serving(model, *OPTIONS, quiet=True) as (first, url):
        async with running_verifier(target, max_context=2048) as standby:
            async with AsyncEdgeClient(standby.url) as plain:
                answers = await asyncio.gather(*(whole(plain, kind) for kind in KINDS))
            expected = dict(zip(KINDS, answers, strict=True))
            assert expected["greedy"] != expected["coupled"]
            results = await resumed([url, standby.url], demo_draft_folder, first)
    for kind, result in results.items():
        assert result.token_ids == expected[kind]
        assert result.stats.reconnects == 1
        assert result.unverified_tokens == 0


async def resumed(urls: list[str], draft: Path, first: subprocess.Popen[str]) -> dict[str, Result]:
    """The answers of which the first verifier is killed."""
    clients = {kind: AsyncEdgeClient(urls, draft=draft, threads=1, controller="fixed", look_ahead=4) for kind in KINDS}
    try:
        await asyncio.gather(*(client.wait_for_draft() for client in clients.values()))
        streams = {kind: client.stream(QUESTION, max_tokens=COUNT, **KINDS[kind]) for kind, client in clients.items()}
        answers = asyncio.gather(*(finished(stream) for stream in streams.values()))
        while not all(map(drafted_well, streams.values())):
            assert not answers.done()
            await asyncio.sleep(0.001)
        first.send_signal(signal.SIGKILL)
        return dict(zip(streams, await wait_for(answers), strict=True))
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


def drafted_well(stream: AsyncStream) -> bool:
    """Drafts have been accepted, and more of the answer is to come."""
    return stream.partial_result().stats.accepted > 1


async def finished(stream: AsyncStream) -> Result:
    """A stream followed to its end."""
    async with stream:
        return await stream.get_final_result()
