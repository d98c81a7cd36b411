"""Programs that import torch and transformers, forked from a process that has done so: that takes 4 seconds each.

Each program is run once as users run it, and from the second time on forked. What it does, prints and ends with is the
same; what is saved is the importing.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["WarmPython"]

_IMMATERIAL = ("PYTEST_CURRENT_TEST", "HF_HUB_DISABLE_PROGRESS_BARS")
"""Variables that come and go, and change nothing of what a builder makes."""


class WarmPython:
    """Runs ``python -m MODULE`` commands to their ends, as ``subprocess.run`` does. One at a time."""

    DEVNULL = subprocess.DEVNULL
    STDOUT = subprocess.STDOUT

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._environment: dict[str, str] = {}
        self._server: subprocess.Popen[str] | None = None

    def run(
        self, command: Sequence[str], *, stdout: Any, env: Mapping[str, str], cwd: Path, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """See :func:`subprocess.run`; ``stdout`` is a file that takes the errors as well."""
        python, flag, module, *arguments = command
        assert (python, flag, options["stderr"]) == (sys.executable, "-m", subprocess.STDOUT)
        # What is imported has read the environment, so one process serves one environment.
        environment = {name: value for name, value in env.items() if name not in _IMMATERIAL}
        if module not in self._seen or (self._server is not None and environment != self._environment):
            self._seen.add(module)
            return subprocess.run(command, stdout=stdout, env=env, cwd=cwd, **options)
        if self._server is None:
            self._environment = environment
            self._server = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        job = {"module": module, "arguments": arguments, "log": stdout.name, "folder": str(cwd)}
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        return subprocess.CompletedProcess(list(command), int(self._server.stdout.readline()))

    def close(self) -> None:
        """End the process, where there is one."""
        if self._server is not None:
            self._server.communicate()


def _serve() -> None:
    """Take a job a line, and tell each one's exit status."""
    import torch  # noqa: F401
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401

    with suppress(ImportError):
        import onnxruntime_genai  # noqa: F401
    with suppress(ImportError):
        import optimum.exporters.onnx  # noqa: F401
    gc.freeze()  # or every child would look through all of it once more at its end
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _run(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _run(*, module: str, arguments: list[str], log: str, folder: str) -> None:
    """In the forked process: what ``python -m module`` does."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((0, nothing), (1, output), (2, output)):
        os.dup2(theirs, ours)
    os.chdir(folder)
    sys.path[0] = folder  # as `-m` has it
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
