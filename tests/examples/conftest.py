"""What the tests of the examples share: a target that can chat, a verifier that is not there, a display."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client.tokenizer import Tokenizer

from ..grace import GRACE
from ..integration.table_bundle import right_table, seal, write_bundle
from ..integration.table_targets import reference_tokens

ROOT = Path(__file__).resolve().parents[2]
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
TABLE = {"vocabulary_size": 64, "seed": 5}  # letters, digits and a space


def reference_answer(target: TableTarget, prompt: str, count: int) -> str:
    """What the target alone answers to a prompt as its template writes it."""
    tokenizer = Tokenizer.from_json(target.tokenizer_json)
    tokens = reference_tokens(target, tokenizer.encode(prompt, add_special_tokens=False), count)
    return tokenizer.decode([token for token in tokens if token not in target.info.eos_ids])


def environment(url: str, draft: Path | None = None) -> dict[str, str]:
    """The environment that the examples read."""
    rest = {name: value for name, value in os.environ.items() if not name.startswith("DRAFTWIRE_")}
    return {**rest, "DRAFTWIRE_URL": url, **({"DRAFTWIRE_DRAFT": str(draft)} if draft is not None else {})}


@asynccontextmanager
async def running(*arguments: str, env: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """A Python program with pipes, which tells of resources it leaks; it does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "always::ResourceWarning",
        *arguments,
        cwd=ROOT,
        env=env,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(GRACE):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def run_example(name: str, *arguments: str, env: Mapping[str, str], lines: str = "") -> tuple[int, str, str]:
    """Run an example to its end. Returns its exit status, output and error output."""
    async with running(f"examples/{name}", *arguments, env=env) as process:
        out, err = await process.communicate(lines.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft bundle that is right about every :data:`TABLE` target without an end."""
    target = TableTarget(**TABLE, eos_bias=-1e4)
    folder = write_bundle(tmp_path_factory.mktemp("draft") / "right", target, right_table(target))
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    seal(folder)
    return folder


@pytest.fixture
def absent() -> Iterator[str]:
    """An address that is taken, so that nobody else gets it, and where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(scope="session")
def display() -> Iterator[str]:
    """The display there is, or else a virtual one of our own."""
    pytest.importorskip("tkinter", reason="this Python has no tkinter (Debian: apt-get install python3-tk)")
    if os.environ.get("DISPLAY"):
        yield os.environ["DISPLAY"]
        return
    if shutil.which("Xvfb") is None:
        pytest.skip("there is no display, and no Xvfb to make one (Debian: apt-get install xvfb)")
    reading, writing = os.pipe()
    command = ["Xvfb", "-displayfd", str(writing), "-screen", "0", "1024x768x24", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=[writing], stderr=subprocess.PIPE, text=True)
    os.close(writing)
    try:
        with os.fdopen(reading) as announced:
            number = announced.readline().strip()  # chosen by the server among the free ones, told once it listens
        if not number:
            pytest.fail(f"Xvfb did not start: {server.communicate()[1]}")
        yield f":{number}"
    finally:
        server.terminate()
        server.communicate()
