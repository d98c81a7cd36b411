from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from draftwire.edge_client.bench.processes import CoreSplit, ask_program, running_verifier, spinning
from draftwire.protocol.errors import DraftwireError, VerifierUnreachableError

pinning = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads cannot be pinned here")


@pinning
def test_the_two_ends_share_no_core() -> None:
    before = os.sched_getaffinity(0)
    split = CoreSplit()
    with split.target():
        target = os.sched_getaffinity(0)
    with split.device():
        device = os.sched_getaffinity(0)
    assert os.sched_getaffinity(0) == before
    if split.possible:
        assert len(target) == 1
        assert target | device == before
        assert not target & device


@pinning
def test_one_core_is_left_as_it_is() -> None:
    before = os.sched_getaffinity(0)
    one = {min(before)}
    os.sched_setaffinity(0, one)
    try:
        split = CoreSplit()
        assert not split.possible
        with split.target():
            assert os.sched_getaffinity(0) == one
    finally:
        os.sched_setaffinity(0, before)


def test_a_program_that_fails_or_says_something_else(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DraftwireError, match="ended with status 1; see the line above"):
        ask_program("draftwire.no_such_module", [])
    assert "No module named" in capfd.readouterr().err
    with pytest.raises(DraftwireError, match="printed no JSON"):
        ask_program("draftwire.edge_client.cli", ["--version"])


def test_a_program_gets_its_input_and_gives_its_json() -> None:
    assert ask_program("json.tool", ["-"], given="[[1, 2], [3]]") == [[1, 2], [3]]


def test_a_verifier_that_does_not_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with (
        pytest.raises(VerifierUnreachableError, match="did not start"),
        running_verifier(str(tmp_path / "nothing"), dtype="float32", cores=CoreSplit()),
    ):
        pytest.fail("it cannot have started")
    assert "draftwire-verifier: error: " in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is before


STARTED = """
import os, subprocess, sys
from draftwire.edge_client.bench import processes
real = subprocess.Popen
def popen(command, **options):
    assert command[-2:] == ["--prefix-cache", "0"], "no prompt is known from the answer before"
    program = "import time; print('serving x at ws://127.0.0.1:5', flush=True); time.sleep(600)"
    return real([sys.executable, "-c", program], **options)
subprocess.Popen = popen
try:
    with processes.running_verifier("x", dtype="float32", cores=processes.CoreSplit()) as port:
        child = open(f"/proc/self/task/{os.getpid()}/children").read().split()
        print(port, *child, flush=True)
        sys.stdin.read()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_whoever_ends_this_process_ends_the_verifier(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    port, child = process.stdout.readline().split()
    assert port == "5"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert out == "interrupted\n"
    assert process.returncode == 0
    assert not Path(f"/proc/{child}").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="nothing but Linux ends a child whose parent is killed")
def test_a_verifier_ends_where_this_process_is_killed() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", STARTED], **pipes)
    assert process.stdout is not None
    assert len(process.stdout.readline().split()) == 2
    process.kill()
    # The verifier holds the pipe for errors that it inherited, so the end of what comes through it is its end.
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL


def children() -> list[int]:
    return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text("ascii").split()]


def cpu_ticks(process: int) -> int:
    """CPU time that a process has used by itself."""
    return int(Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[11])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.timeout(60)
def test_one_process_spins_on_each_core_and_none_is_left() -> None:
    before, cores = set(children()), os.sched_getaffinity(0)
    with CoreSplit().device(), spinning():
        own = os.sched_getaffinity(0)
        started = [child for child in children() if child not in before]
        assert len(started) == len(own)
        assert {os.getpriority(os.PRIO_PROCESS, child) for child in started} == {os.getpriority(os.PRIO_PROCESS, 0)}
        while min(map(cpu_ticks, started)) < 5:  # one that does not spin never comes there
            os.sched_yield()
        assert set().union(*map(os.sched_getaffinity, started)) == own
        assert all(len(os.sched_getaffinity(child)) == 1 for child in started)
    assert os.sched_getaffinity(0) == cores
    assert set(children()) == before


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_no_process_spins_on_after_a_failure() -> None:
    before = set(children())
    with pytest.raises(ZeroDivisionError), spinning():
        raise ZeroDivisionError
    assert set(children()) == before


ORPHAN = """
import os, sys
from draftwire.edge_client.bench.processes import spinning
with spinning():
    print(*open(f"/proc/self/task/{os.getpid()}/children").read().split(), flush=True)
    sys.stdin.read()
    os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_spinning_process_ends_with_its_parent_however_that_ends() -> None:
    process = subprocess.Popen([sys.executable, "-c", ORPHAN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    # Every child holds the pipe it inherited, so the end of what comes through it is the end of them all.
    assert process.stdout.readline().split()
    process.communicate(timeout=60)
    assert process.returncode == 0
