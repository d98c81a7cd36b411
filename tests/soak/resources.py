"""What a process holds, read from where the kernel tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Resources:
    """Resident bytes that are the process's own (no mapped files), open files, threads."""

    memory: int
    files: int
    threads: int


def resources_of(pid: int) -> Resources:
    """Of a running process."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    memory = int(fields["RssAnon"].split()[0]) * 1024
    return Resources(memory, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(fields["Threads"]))
