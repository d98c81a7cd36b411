"""How much memory a device has left, as far as the system tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

__all__ = ["free_memory"]

_MEMORY_TABLE = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_GROUP_ROOT = Path("/sys/fs/cgroup")
_GROUP_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, use, and what of the use is files that are only cached: of control groups, version 2 and 1."""


def free_memory(device: torch.device) -> int | None:
    """Bytes that could be taken on ``device`` now, on the CPU without swapping; None where the system does not tell.

    Limits of containers count.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type != "cpu":
        return None
    available = _available()
    left = [_unused() if available is None else available, *map(_left_in, _groups())]
    return min((each for each in left if each is not None), default=None)


def _available() -> int | None:
    """What Linux would give, files that it only caches included."""
    try:
        lines = _MEMORY_TABLE.read_text("ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


def _unused() -> int | None:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return free if free > 0 else None


def _groups() -> Iterator[Path]:
    """The control groups that this process is in, each with those around it; a container sees its own as the root."""
    try:
        lines = [line.split(":", 2) for line in _GROUPS.read_text("utf-8").splitlines()]
    except (OSError, ValueError):
        return
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers in ("", "memory"):
            root = _GROUP_ROOT / controllers
            folder = root / path.lstrip("/")
            yield from (each for each in (folder, *folder.parents) if each.is_relative_to(root))


def _left_in(group: Path) -> int | None:
    for limit, use, cached in _GROUP_FILES:
        try:
            most, used = int((group / limit).read_text("ascii")), int((group / use).read_text("ascii"))
            stat = dict(line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
            return max(0, most - used + int(stat[cached]))
        except (OSError, ValueError, KeyError):  # no such group, or no limit: "max"
            continue
    return None
