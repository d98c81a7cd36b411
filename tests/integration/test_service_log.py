"""The log of a verifier that serves: what is in it, what never is, and what happens when it cannot be written."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client import AsyncEdgeClient

from ..grace import GRACE, wait_for
from .table_targets import endless_table, reference_tokens
from .test_metrics import Scrape, fetch

PROGRAM = Path(__file__).with_name("serve_observed.py")
PROMPT = [1, 7, 3]
SECRET = "dw-5ecret-0123456789abcdef"


class Served:
    """A verifier in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self.errors = ""

    def metrics(self) -> Scrape:
        return Scrape(fetch(f"http://127.0.0.1:{self.port}/metrics")[1])

    def end(self) -> None:
        """SIGTERM, and all that standard error has said."""
        self.process.send_signal(signal.SIGTERM)
        _, self.errors = self.process.communicate(timeout=GRACE)
        assert self.process.returncode == 0


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    command = [sys.executable, str(PROGRAM), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Served(process, int(process.stdout.readline()))
        finally:
            process.kill()


async def generate(port: int, streams: int, count: int = 40) -> None:
    """So many exact answers on one connection, a few at a time."""
    expected = reference_tokens(endless_table(), PROMPT, count)
    async with AsyncEdgeClient(f"ws://127.0.0.1:{port}", api_key=SECRET) as client:
        for _ in range(streams // 4):
            answers = asyncio.gather(*(client.generate(PROMPT, max_tokens=count) for _ in range(4)))
            for result in await wait_for(answers):
                assert result.token_ids == expected


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


async def test_a_request_can_be_followed_by_its_id(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with served("--log-format", "json", "--log-file", str(path)) as verifier:
        await generate(verifier.port, 4)
        verifier.end()
    assert verifier.errors == ""
    lines = lines_of(path.read_text())
    requests = [line for line in lines if line["logger"] == "draftwire.requests"]
    assert len({line["request_id"] for line in requests}) == 1
    for stream in range(1, 5):
        opened, ended = [line for line in requests if line["stream"] == stream]
        assert (opened["prompt_tokens"], opened["level"]) == (3, "info")
        assert (ended["outcome"], ended["committed_tokens"], ended["tenant"]) == ("length", 40, "anybody")
        assert 0 < ended["first_token_seconds"] <= ended["seconds"]
    assert any(line["message"].startswith("draining") for line in lines)


@pytest.mark.parametrize("form", ["text", "json"])
async def test_no_key_and_no_prompt_is_logged_whatever_is_logged(form: str) -> None:
    with served("--log-format", form, "--log-level", "debug") as verifier:
        await generate(verifier.port, 4)
        await asyncio.to_thread(fetch, f"http://127.0.0.1:{verifier.port}/v1/models", Authorization=f"Bearer {SECRET}")
        verifier.end()
    assert "asyncio" in verifier.errors  # libraries log at debug as well
    assert "length, 40 tokens" in verifier.errors
    assert SECRET not in verifier.errors
    assert "[1, 7, 3]" not in verifier.errors
    assert "1, 7, 3" not in verifier.errors


async def test_a_log_file_that_is_rotated_under_load(tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    with served("--log-format", "json", "--log-file", str(path)) as verifier:
        await generate(verifier.port, 4)
        await asyncio.to_thread(path.rename, moved)
        await generate(verifier.port, 4)
        seen = await asyncio.to_thread(verifier.metrics)
        verifier.end()
    requests = [line for each in (moved, path) for line in lines_of(each.read_text()) if "outcome" in line]
    assert len(requests) == 8
    assert lines_of(path.read_text())
    assert (seen.value("log_errors_total"), seen.value("log_dropped_total")) == (0, 0)


@pytest.mark.parametrize("full", ["device", "limit"])
async def test_a_full_disk_costs_log_lines_and_nothing_else(full: str, tmp_path: Path) -> None:
    path = Path("/dev/full") if full == "device" else tmp_path / "log"
    limit = [] if full == "device" else ["--file-bytes", "2000"]
    with served("--log-format", "json", "--log-file", str(path), *limit) as verifier:
        await generate(verifier.port, 40)
        seen = await asyncio.to_thread(verifier.metrics)
        assert seen.value("request_success_total", finished_reason="length") == 40
        async with asyncio.timeout(GRACE):  # the log is written in a thread of its own
            while seen.value("log_errors_total") <= 40:
                seen = await asyncio.to_thread(verifier.metrics)
        verifier.end()
    (line,) = verifier.errors.splitlines()
    assert line.startswith("log lines cannot be written: ")
    assert line.endswith("going on without them")
    if full == "limit":
        assert path.stat().st_size == 2000
        assert len(lines_of("\n".join(path.read_text().splitlines()[:-1]))) > 3


async def test_a_standard_error_that_nobody_reads_holds_no_stream_up() -> None:
    """The pipe is full after 64 KiB, and the rest waits; answers come all the same, and so does the end."""
    with served("--log-format", "json", "--log-level", "debug") as verifier:
        await generate(verifier.port, 400, count=2)
        seen = await asyncio.to_thread(verifier.metrics)
        assert seen.value("request_success_total", finished_reason="length") == 400
        assert verifier.process.poll() is None
        verifier.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(verifier.process.wait, GRACE) == 0
