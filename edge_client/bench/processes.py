"""The other programs that a run on one machine needs: the verifier, the demo pair's maker, the references.

They run as programs, not as modules: the device imports neither torch nor any other part of the package. Where the
machine has two cores, the target's end has one of them to itself and this process the others, so that neither slows
the other down.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...protocol.errors import DraftwireError, VerifierUnreachableError

__all__ = [
    "CoreSplit",
    "Pair",
    "ask_program",
    "demo_pair",
    "running_verifier",
    "spinning",
    "terminate_is_interrupt",
]

_GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_SPIN = """
import os, sys
parent, core = map(int, sys.argv[1:])
if core >= 0:
    os.sched_setaffinity(0, {core})
while os.getppid() == parent:  # it ends even where its parent could not end it
    for _ in range(100_000):
        pass
"""


@dataclass(frozen=True, slots=True)
class Pair:
    """Folders, or a hub id for the target."""

    target: str
    draft: str


def demo_pair() -> Pair:
    """The demo target and its draft, fetched and made if need be, which takes a minute or two.

    Raises:
        DraftwireError: they could not be made; the exporter has said why on standard error.
    """
    try:
        made = ask_program("draftwire.export.cli", ["demo-model", "--json"])
    except DraftwireError as error:
        raise DraftwireError("the demo pair could not be made; see the line above") from error
    return Pair(target=made["target"], draft=made["draft"])


def ask_program(module: str, arguments: Sequence[str], *, given: str | None = None) -> Any:
    """Run a module of this package as a program and read the JSON it prints; an interrupt ends it, too.

    Args:
        given: its standard input.

    Raises:
        DraftwireError: it failed; it has said why on standard error.
    """
    command = [sys.executable, "-m", module, *arguments]
    source: dict[str, Any] = {"stdin": subprocess.DEVNULL} if given is None else {"input": given}
    with terminate_is_interrupt():
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=False, **source)
    if done.returncode != 0:
        raise DraftwireError(f"{module} ended with status {done.returncode}; see the line above")
    try:
        return json.loads(done.stdout)
    except ValueError as error:
        raise DraftwireError(f"{module} printed no JSON") from error


class CoreSplit:
    """Which cores belong to the target's end and which to this process; none are split where there is only one."""

    def __init__(self) -> None:
        can = hasattr(os, "sched_setaffinity")
        self._all = sorted(os.sched_getaffinity(0)) if can else []

    @property
    def possible(self) -> bool:
        """Whether there are two cores to tell apart."""
        return len(self._all) >= 2

    @contextlib.contextmanager
    def device(self) -> Iterator[None]:
        """Keep this thread, and those it starts, off the target's core."""
        with self._on(self._all[:-1]):
            yield

    @contextlib.contextmanager
    def target(self) -> Iterator[None]:
        """Put what is started meanwhile on the target's core."""
        with self._on(self._all[-1:]):
            yield

    @contextlib.contextmanager
    def _on(self, cores: list[int]) -> Iterator[None]:
        if not self.possible:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


@contextlib.contextmanager
def running_verifier(target: str, *, dtype: str, cores: CoreSplit) -> Iterator[int]:
    """A verifier process with one thread on a core of its own; yields its port, and ends it whatever happens.

    This process keeps off that core meanwhile, and a request to terminate counts as an interrupt. On Linux the verifier
    ends even where this process is killed; there it must not outlive the thread that enters this.

    Raises:
        VerifierUnreachableError: it did not start; it has said why on standard error.
    """
    command = [sys.executable, "-m", "draftwire.cloud_verifier.cli", "--log-level", "warning", "serve", target]
    # Each answer is to pay for its prompt: one that is known from the answer before would be read in no time.
    command += ["--port", "0", "--dtype", dtype, "--threads", "1", "--prefix-cache", "0"]
    with terminate_is_interrupt():
        # An interrupt from the terminal is for this process, which then ends the verifier in its own time.
        with cores.target():
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
                text=True,
                preexec_fn=_dying_with_parent(),
                **_own_group(),
            )
        try:
            with cores.device():
                yield _announced_port(process)
        finally:
            _end(process)


@contextlib.contextmanager
def spinning() -> Iterator[None]:
    """On each core that this thread may use, another process that wants all of it; ended whatever happens."""
    can = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if can else [-1] * (os.cpu_count() or 1)
    command = [sys.executable, "-c", _SPIN, str(os.getpid())]
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    processes: list[subprocess.Popen[str]] = []
    with terminate_is_interrupt():
        try:
            for core in cores:
                processes.append(subprocess.Popen([*command, str(core)], text=True, **quiet, **_own_group()))
            yield
        finally:
            for process in processes:
                process.kill()  # it has nothing to put in order
            for process in processes:
                process.wait()


def _own_group() -> dict[str, Any]:
    return {"process_group": 0} if os.name == "posix" else {}


def _dying_with_parent() -> Callable[[], None] | None:
    """What a child has to do first so that the kernel kills it when the thread that started it ends; Linux has that."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()  # looked up here: after a fork the less is done the better

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it has ended already
            os._exit(1)

    return prepare


def _announced_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("serving "):
            return urlsplit(line.split()[-1]).port or 0
    raise VerifierUnreachableError("the verifier did not start; see the line above")


def _end(process: subprocess.Popen[str]) -> None:
    """End a process, by force where it does not end itself, or where the user insists."""
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()
    finally:
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def terminate_is_interrupt() -> Iterator[None]:
    """Let SIGTERM be handled as an interrupt is, so that whoever ends this process ends its children."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    """As an interrupt would: by whoever handles that, such as a running event loop.

    Nobody does where it is ignored, as in the background of a shell script; and a request to end is none to ignore.
    """
    if callable(signal.getsignal(signal.SIGINT)):
        signal.raise_signal(signal.SIGINT)
    else:
        raise KeyboardInterrupt
