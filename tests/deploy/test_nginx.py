"""The proxy's configuration with a real nginx between clients and two verifiers, one of which goes away."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import Transport
from draftwire.protocol.errors import ConnectionLostError

from ..grace import GRACE

ROOT = Path(__file__).resolve().parents[2]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
PROGRAM = ROOT / "tests" / "integration" / "serve_observed.py"

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not here")


def free_port() -> int:
    with socket.socket() as some:
        some.bind(("127.0.0.1", 0))
        return int(some.getsockname()[1])


@contextmanager
def verifier() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, str(PROGRAM), "--log-level", "warning", "--step-seconds", "0.005"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline())
        finally:
            process.kill()


@contextmanager
def nginx(folder: Path, ports: list[int], *, idle: str) -> Iterator[int]:
    """Our configuration, with these verifiers and time-outs of ``idle`` in place of its own."""
    port, text = free_port(), (ROOT / "deploy" / "nginx" / "draftwire.conf").read_text()
    for name, there in zip(("verifier-1:8300", "verifier-2:8300"), ports, strict=True):
        assert name in text
        text = text.replace(name, f"127.0.0.1:{there}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}")
    text = re.sub(r"(proxy_(?:read|send)_timeout) \S+;", rf"\1 {idle};", text)
    temporary = " ".join(f"{kind}_temp_path {folder};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    configuration.write_text(
        f"{user} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log warn;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary}\n{text}\n}}\n"
    )
    assert NGINX is not None
    with subprocess.Popen([NGINX, "-e", f"{folder}/error.log", "-c", str(configuration)]) as process:
        try:
            for _ in range(3000):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                assert process.poll() is None, (folder / "error.log").read_text()
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(GRACE)


@dataclass(frozen=True, slots=True)
class Behind:
    """Two verifiers behind a proxy."""

    verifiers: list[subprocess.Popen[str]]
    ports: list[int]
    port: int


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Behind]:
    with ExitStack() as stack:
        running = [stack.enter_context(verifier()) for _ in range(2)]
        ports = [port for _, port in running]
        proxied = stack.enter_context(nginx(tmp_path, ports, idle="75s"))
        yield Behind([process for process, _ in running], ports, proxied)


async def answer(port: int, seed: int = 1) -> tuple[int, ...]:
    async with asyncio.timeout(GRACE), AsyncEdgeClient(f"ws://127.0.0.1:{port}") as client:
        result = await client.generate([1, 7, 3], max_tokens=20, temperature=0.8, seed=seed)
        return result.token_ids


def status(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=GRACE) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def test_streams_go_through_and_metrics_do_not(behind: Behind) -> None:
    first, *others = await asyncio.gather(*(answer(behind.port) for _ in range(6)))
    assert len(first) == 20
    assert all(other == first for other in others)
    assert await asyncio.to_thread(status, behind.port, "/healthz") == 200
    assert await asyncio.to_thread(status, behind.port, "/metrics") == 404


async def test_one_verifier_drains_and_nobody_notices(behind: Behind) -> None:
    """Streams that run finish, and whoever comes meanwhile is served by the other."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncEdgeClient(f"ws://127.0.0.1:{behind.port}")) for _ in range(2)]
        running = [
            await stack.enter_async_context(client.stream([1, 7, 3], max_tokens=400, seed=4)) for client in clients
        ]
        for stream in running:
            await asyncio.wait_for(anext(aiter(stream)), GRACE)  # it is under way
        behind.verifiers[0].send_signal(signal.SIGTERM)
        while await asyncio.to_thread(status, behind.ports[0], "/readyz") == 200:
            pass
        texts = await asyncio.gather(*(answer(behind.port) for _ in range(6)))
        assert len(set(texts)) == 1
        results = await asyncio.gather(*(stream.get_final_result() for stream in running))
    assert results[0].token_ids == results[1].token_ids
    assert len(results[0].token_ids) == 400
    assert await asyncio.to_thread(behind.verifiers[0].wait, GRACE) == 0
    assert await answer(behind.port) == texts[0]


async def test_one_verifier_dies_and_the_other_takes_whoever_comes(behind: Behind) -> None:
    before = await answer(behind.port)
    behind.verifiers[1].kill()
    assert await asyncio.to_thread(behind.verifiers[1].wait, GRACE) == -signal.SIGKILL
    assert {await answer(behind.port) for _ in range(6)} == {before}


@pytest.mark.parametrize(("interval", "lives"), [(0.1, True), (50.0, False)])
async def test_a_silent_connection_outlives_the_time_out_only_by_pings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: float, lives: bool
) -> None:
    """A client pings ten times within the proxy's time-out here, as it does three times within that of the file."""
    monkeypatch.setattr("draftwire.edge_client.transport._PING_INTERVAL", interval)
    with ExitStack() as stack:
        _, port = stack.enter_context(verifier())
        proxied = stack.enter_context(nginx(tmp_path, [port, port], idle="1s"))
        transport = await Transport.connect(f"ws://127.0.0.1:{proxied}")
        silence = asyncio.create_task(transport.receive())  # being silent for longer than the proxy allows is the test
        done, _ = await asyncio.wait([silence], timeout=2.5 if lives else GRACE)
        assert bool(done) is not lives
        if lives:
            await asyncio.wait_for(transport.ping(), GRACE)
            silence.cancel()
        else:
            with pytest.raises(ConnectionLostError):
                await silence
        await transport.close()
