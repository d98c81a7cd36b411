"""``draftwire relay``, run as users run it: a process that forwards until it is interrupted."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.cli import main
from draftwire.protocol.errors import VerifierUnreachableError

from ..grace import GRACE, wait_for
from .running_verifier import running_verifier
from .table_targets import endless_table, reference_tokens

PROMPT = [1, 7, 3]


@asynccontextmanager
async def relay(*arguments: str, before: Sequence[str] = ()) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command; ``before`` it, another that becomes it."""
    process = await asyncio.create_subprocess_exec(
        *before,
        sys.executable,
        "-m",
        "draftwire.edge_client.cli",
        "relay",
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def first_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await wait_for(process.stdout.readline())).decode()


def port_in(line: str) -> int:
    found = re.match(r"listening on 127\.0\.0\.1:(\d+), ", line)
    assert found, line
    return int(found[1])


async def interrupted(
    process: asyncio.subprocess.Process, number: signal.Signals = signal.SIGINT
) -> tuple[int, str, str]:
    """Interrupt it as Ctrl-C does; returns status, what it printed since, and what it complained."""
    process.send_signal(number)
    out, err = await wait_for(process.communicate())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_it_relays_until_interrupted_and_says_what_it_did() -> None:
    async with (
        running_verifier(endless_table()) as verifier,
        relay(
            "--to", f"127.0.0.1:{verifier.port}", "--rtt", "20", "--jitter", "0-1", "--bandwidth", "1M/2M"
        ) as process,
    ):
        line = await first_line(process)
        assert line.endswith(
            f"relaying to 127.0.0.1:{verifier.port}, round trip 20 ms, jitter 0 to 1 ms one way, 1M/2M bit/s up/down\n"
        )
        async with AsyncEdgeClient(f"ws://127.0.0.1:{port_in(line)}") as client:
            started = time.monotonic()
            result = await wait_for(client.generate(PROMPT, max_tokens=5))
            assert time.monotonic() - started >= 0.02
            assert result.token_ids == reference_tokens(endless_table(), PROMPT, 5)
        status, out, err = await interrupted(process)
    assert (status, err) == (130, "")
    assert re.fullmatch(
        r"relayed for \d+\.\d s: [1-9]\d* connections?, [1-9]\d* bytes up, [1-9]\d* bytes down, 0 cuts\n", out
    )


async def test_cuts_happen_and_let_the_next_connection_go_on() -> None:
    async with (
        running_verifier(endless_table()) as verifier,
        relay("--to", f"127.0.0.1:{verifier.port}", "--cut-after-bytes", "1,2") as process,
    ):
        line = await first_line(process)
        assert "cut after 1,2 bytes down" in line
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_in(line))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            with pytest.raises(ConnectionResetError):
                await wait_for(reader.read())
            writer.close()
        async with AsyncEdgeClient(f"ws://127.0.0.1:{port_in(line)}") as client:
            assert len((await wait_for(client.generate(PROMPT, max_tokens=5))).token_ids) == 5
        status, out, err = await interrupted(process)
    assert (status, err) == (130, "")
    assert out.endswith(" 2 cuts\n")


@pytest.mark.parametrize(("times", "cuts"), [("0.05", "1 cut"), ("0.05,0.05", "2 cuts")])
async def test_a_connection_is_cut_in_time(times: str, cuts: str) -> None:
    async with (
        running_verifier(endless_table()) as verifier,
        relay("--to", f"127.0.0.1:{verifier.port}", "--cut-after", times) as process,
    ):
        port = port_in(await first_line(process))
        for _ in times.split(","):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionResetError):
                await wait_for(reader.read())
            writer.close()
        assert (await interrupted(process))[1].endswith(f" {cuts}\n")


@pytest.mark.parametrize("before", [(), ("/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh")])
async def test_a_request_to_terminate_is_an_interrupt(before: tuple[str, ...]) -> None:
    """Also where interrupts are ignored, as in the background of a script."""
    async with relay("--to", "127.0.0.1:1", before=before) as process:
        await first_line(process)
        status, out, err = await interrupted(process, signal.SIGTERM)
    assert (status, err) == (130, "")
    assert re.fullmatch(r"relayed for \d+\.\d s: 0 connections, .*\n", out)


@pytest.mark.skipif(sys.platform == "win32", reason="needs ulimit")
async def tokens_once_there_is_room(port: int) -> Sequence[int]:
    """Five tokens through the relay, which closes connections until it has noticed that the others are gone."""
    while True:
        try:
            async with AsyncEdgeClient(f"ws://127.0.0.1:{port}") as client:
                return (await client.generate(PROMPT, max_tokens=5)).token_ids
        except VerifierUnreachableError:
            await asyncio.sleep(0.02)


async def test_a_lack_of_open_files_is_one_line_and_passes() -> None:
    few = ("/bin/sh", "-c", 'ulimit -n 30; exec "$@"', "sh")
    async with (
        running_verifier(endless_table()) as verifier,
        relay("--to", f"127.0.0.1:{verifier.port}", before=few) as process,
    ):
        port = port_in(await first_line(process))
        ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        assert process.stderr is not None
        told = (await wait_for(process.stderr.readline())).decode()
        for _, writer in ends:
            writer.close()
        assert len(await wait_for(tokens_once_there_is_room(port))) == 5
        status, _, err = await interrupted(process)
    assert told == ("draftwire: too many open files: connections wait or are closed; raise the limit with ulimit -n\n")
    assert (status, err) == (130, "")


async def test_an_unreachable_target_is_told_and_the_relay_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with relay("--to", f"127.0.0.1:{port}") as process:
        line = await first_line(process)
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", port_in(line))
            assert await wait_for(reader.read()) == b""
            writer.close()
        status, out, err = await interrupted(process)
    assert status == 130
    assert err == f"draftwire: 127.0.0.1:{port} refused the connection; is anything listening there yet?\n"
    assert ": 2 connections, 0 bytes up, 0 bytes down, 0 cuts" in out


async def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        async with relay("--to", "127.0.0.1:1", "--listen", address) as process:
            out, err = await wait_for(process.communicate())
    assert (process.returncode, out) == (1, b"")
    assert err.decode() == (
        f"draftwire: error: cannot listen on {address}: Address already in use; choose another address\n"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--to", "nowhere"),
        ("--to", "127.0.0.1:0"),
        ("--to", "127.0.0.1:99999"),
        ("--to", "u@h:1"),
        ("--to", "a" * 70 + ".com:1"),
        ("--to", "ä..b:1"),
        ("--listen", "a" * 70 + ".com:0"),
        ("--listen", "ä..b:0"),
        ("--to", "127.0.0.1:8123", "--listen", "127.0.0.1:8123"),
        ("--cut-after", ",,"),
        ("--cut-after", ""),
        ("--cut-after", "2,"),
        ("--cut-after-bytes", ",,"),
        ("--listen", ":80"),
        ("--rtt", "-1"),
        ("--rtt", "nan"),
        ("--jitter", "5-1"),
        ("--bandwidth", "fast"),
        ("--cut-after", "1,soon"),
        ("--cut-after-bytes", "0"),
    ],
)
@pytest.mark.timeout(GRACE)
def test_what_cannot_be_is_refused_in_one_line_that_names_it(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["relay", "--to", "127.0.0.1:1", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"draftwire: error: {arguments[0]}: ")
    assert err.count("\n") == 1


async def test_what_cannot_be_is_refused_by_the_program() -> None:
    async with relay("--to", "nowhere") as process:
        out, err = await wait_for(process.communicate())
    assert (process.returncode, out) == (2, b"")
    assert err.startswith(b"draftwire: error: --to: ")
    assert err.count(b"\n") == 1
