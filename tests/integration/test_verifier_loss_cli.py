"""The ``draftwire`` command when its verifier is lost: one line on standard error, and the answer goes on."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..grace import wait_for
from .lost_verifiers import faulty
from .running_verifier import running_verifier
from .scripted_verifier import scripted_verifier
from .table_bundle import seal
from .table_targets import endless_table, reference_tokens
from .test_edge_cli import Ran, draftwire
from .verifier_process import serving_table

PROMPT = [1, 2, 3]
OPTIONS = ("abc", "--raw", "--max-tokens", "30")


def text_of(tokens: tuple[int, ...]) -> str:
    return "".join(chr(ord("a") + token - 1) for token in tokens)


EXPECTED = reference_tokens(endless_table(), PROMPT, 30)


@pytest.fixture
def absent() -> Iterator[str]:
    """An address that is taken, so that nobody else gets it, and where nothing listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"ws://127.0.0.1:{taken.getsockname()[1]}"


def check_lines(ran: Ran, *starts: str) -> None:
    lines = ran.err.splitlines()
    assert len(lines) == len(starts), ran.err
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(f"draftwire: {start}")


async def test_the_next_address_takes_over_with_one_line(absent: str) -> None:
    async with (
        running_verifier(endless_table()) as standby,
        scripted_verifier(faulty("middle", "breaks", EXPECTED)) as first,
    ):
        urls = [word for url in (absent, first, standby.url) for word in ("--url", url)]
        ran = await draftwire("generate", *OPTIONS, *urls)
        assert (ran.status, ran.out) == (0, text_of(EXPECTED) + "\n"), ran.err
        check_lines(ran, "trying to go on: the connection broke off")
        told = await draftwire("generate", *OPTIONS, *urls, "--stats")
        assert ", connected 2 times, " in told.err


async def test_killed_in_mid_answer(right_draft: Path) -> None:
    """As a user would see it: a pause, a line, the same text."""
    with serving_table() as (first, url), serving_table() as (_, standby):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "draftwire.edge_client.cli", "generate", "abc", "--raw", "--max-tokens", "300"),
            *("--url", url, "--url", standby, "--draft", str(right_draft)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        begun = await wait_for(process.stdout.readexactly(10))
        first.send_signal(signal.SIGKILL)
        rest, err = await wait_for(process.communicate())
    assert process.returncode == 0
    assert (begun + rest).decode() == text_of(reference_tokens(endless_table(), PROMPT, 300)) + "\n"
    check_lines(Ran(0, "", err.decode()), "trying to go on: ")


async def test_without_time_the_answer_ends_with_its_connection() -> None:
    async with scripted_verifier(faulty("middle", "breaks", EXPECTED)) as first:
        ran = await draftwire("generate", *OPTIONS, "--url", first, "--reconnect-seconds", "0")
        assert (ran.status, ran.out) == (1, text_of(EXPECTED[:15]))
        assert ran.failed_in_one_line()
        reported = await draftwire("generate", *OPTIONS, "--url", first, "--reconnect-seconds", "0", "--json")
        report = json.loads(reported.out)
        assert report["token_ids"] == list(EXPECTED[:15])
        assert "broke off" in report["error"]


async def test_a_draft_goes_on_alone_only_if_asked_and_says_so(absent: str, right_draft: Path) -> None:
    drafted = (*OPTIONS, "--url", absent, "--draft", str(right_draft))
    refused = await draftwire("generate", *drafted)
    assert (refused.status, refused.out) == (1, "")
    assert refused.failed_in_one_line()
    alone = await draftwire("generate", *drafted, "--on-verifier-loss", "draft_only", "--stats")
    assert (alone.status, alone.out) == (0, text_of(EXPECTED) + "\n")
    notice, figures = alone.err.splitlines()
    assert notice.startswith(f"draftwire: draft-only: no verifier at {absent}")
    assert figures.startswith("30 tokens, 30 of them the draft's alone, ")
    report = json.loads((await draftwire("generate", *drafted, "--on-verifier-loss", "draft_only", "--json")).out)
    assert report["unverified_tokens"] == 30


async def test_chat_goes_on_alone_too(absent: str, tmp_path: Path, right_draft: Path) -> None:
    folder = Path(shutil.copytree(right_draft, tmp_path / "draft"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}", encoding="utf-8")
    seal(folder)
    options = ("--url", absent, "--draft", str(folder), "--max-tokens", "30")
    assert (await draftwire("chat", *options, stdin="abc\n")).status == 1
    ran = await draftwire("chat", *options, "--on-verifier-loss", "draft_only", stdin="abc\n")
    assert (ran.status, ran.out) == (0, text_of(EXPECTED) + "\n")
    assert "draftwire: draft-only: no verifier at" in ran.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--reconnect-seconds", "-1"], "reconnect_seconds"),
        (["--reconnect-seconds", "nan"], "reconnect_seconds"),
        (["--on-verifier-loss", "draft_only"], "on_verifier_loss"),
        (["--url", "ws://127.0.0.1:9", "--url", "ftp://nowhere"], "url"),
    ],
)
async def test_a_bad_value_is_wrong_usage_and_named(arguments: list[str], named: str) -> None:
    ran = await draftwire("generate", *OPTIONS, *arguments)
    assert ran.status == 2
    assert ran.failed_in_one_line()
    assert f"error: {named}: " in ran.err


async def test_a_loss_policy_that_is_none_is_explained() -> None:
    ran = await draftwire("generate", *OPTIONS, "--on-verifier-loss", "panic")
    assert ran.status == 2
    assert "--on-verifier-loss" in ran.err
    assert "Traceback" not in ran.err
