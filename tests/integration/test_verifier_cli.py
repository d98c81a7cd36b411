"""``draftwire-verifier`` as a user meets it: exit statuses, one line for a failure, a clean end on SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from draftwire.cloud_verifier.cli import main
from draftwire.edge_client import AsyncEdgeClient, RoundCompleted
from draftwire.edge_client.transport import Transport
from draftwire.protocol.errors import ConnectionLostError, ErrorCode, StreamError, VerifierRefusedError

from ..grace import GRACE, wait_for
from .verifier_process import make_tiny_model, program, serving


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


def one_line(text: str) -> str:
    """The error line, which must be all there is of it."""
    lines = [line for line in text.splitlines() if line.startswith("draftwire-verifier: error: ")]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


# --- what fails ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["serve", "info"])
def test_an_unknown_model(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, str(tmp_path / "no-such-model")]) == 1
    assert "no-such-model" in one_line(capsys.readouterr().err)


def test_a_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{")
    assert main(["info", str(tmp_path)]) == 1
    one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["serve"],
        ["sing", "model"],
        ["serve", "model", "--port", "99999"],
        ["serve", "model", "--port", "http"],
        ["serve", "model", "--max-streams", "0"],
        ["serve", "model", "--max-context", "-4"],
        ["serve", "model", "--run-ahead", "maybe"],
        ["serve", "model", "--dtype", "int1"],
        ["serve", "model", "--no-such-option"],
        ["--log-level", "loud", "info"],
    ],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    output = capsys.readouterr().err
    assert "usage: draftwire-verifier" in output
    assert "Traceback" not in output


def test_more_context_than_the_model_has(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tiny_model), "--max-context", "5000"]) == 2
    assert "4096" in one_line(capsys.readouterr().err)


def test_a_device_that_is_not_there(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tiny_model), "--device", "tpu:7"]) in (1, 2)
    assert "tpu:7" in one_line(capsys.readouterr().err)


def test_a_port_in_use(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["serve", str(tiny_model), "--port", str(port)]) == 1
    line = one_line(capsys.readouterr().err)
    assert str(port) in line
    assert "choose another port" in line


def test_a_failure_has_no_traceback_as_a_program_either(tmp_path: Path) -> None:
    done = run("info", str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "nothing" in one_line(done.stderr)
    assert done.stdout == ""


@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_output_that_cannot_be_written(unbuffered: str) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            program("info"),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=GRACE,
            env=environment,
        )
    assert done.returncode == 1
    assert "No space left" in one_line(done.stderr)


def test_output_that_nobody_reads() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            program("info"), stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, timeout=GRACE
        )
    assert (done.returncode, done.stderr) == (1, "")


# --- what works ---------------------------------------------------------------------------------------------------


def test_info(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tiny_model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["vocabulary_size"] == 64
    assert report["max_context"] == 4096
    assert report["eos_ids"] == [1]
    assert main(["info"]) == 0
    assert "transformers" in capsys.readouterr().out


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(*arguments), capture_output=True, text=True, check=False, timeout=GRACE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
async def test_a_signal_ends_it_in_order(number: signal.Signals, tiny_model: Path) -> None:
    """A stream under way is told why, its connection closes with 1001, and the program exits with 0."""
    options = ("--threads", "1", "--max-context", "4000", "--drain-seconds", "0.2")
    with serving(str(tiny_model), *options) as (process, url):
        async with AsyncEdgeClient(url, reconnect_seconds=0) as client:
            assert (await client.connect()).limits.max_context == 4000
            prompt = [5, 6, 7]
            first = await wait_for(client.generate(prompt, max_tokens=20, ignore_eos=True))
            idle = await Transport.connect(url)
            async with client.stream(prompt, max_tokens=3900, ignore_eos=True) as stream:
                async for event in stream:
                    if isinstance(event, RoundCompleted) and len(stream.partial_result().token_ids) >= 20:
                        break
                process.send_signal(number)
                with pytest.raises(StreamError, match="shutting down") as caught:
                    await wait_for(stream.get_final_result())
                assert caught.value.code is ErrorCode.SHUTTING_DOWN
                assert stream.partial_result().token_ids[:20] == first.token_ids
            with pytest.raises(ConnectionLostError, match="1001"):
                await wait_for(idle.receive())
            assert process.wait(GRACE) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


async def test_sigterm_lets_what_runs_finish_and_sends_newcomers_away(tiny_model: Path) -> None:
    with serving(str(tiny_model), "--threads", "1", "--max-context", "4000") as (process, url):
        async with AsyncEdgeClient(url) as client, AsyncEdgeClient(url, reconnect_seconds=0) as late:
            await late.connect()
            async with client.stream([5, 6, 7], max_tokens=1500, ignore_eos=True) as stream:
                async for event in stream:
                    if isinstance(event, RoundCompleted):
                        break
                process.send_signal(signal.SIGTERM)
                refused: StreamError | None = None
                while refused is None:  # the signal takes effect between two tokens
                    try:
                        await late.generate([5], max_tokens=1)
                    except StreamError as error:
                        refused = error
                assert refused.code is ErrorCode.SHUTTING_DOWN
                with pytest.raises(VerifierRefusedError, match="503"):
                    await AsyncEdgeClient(url).connect()
                result = await wait_for(stream.get_final_result())
                assert len(result.token_ids) == 1500
        assert process.wait(GRACE) == 0
