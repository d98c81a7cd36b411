from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from draftwire.cloud_verifier.targets import free_memory as module
from draftwire.cloud_verifier.targets.free_memory import free_memory

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No control groups but those that a test makes."""
    monkeypatch.setattr(module, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(module, "_GROUP_ROOT", tmp_path / "cgroup")
    return tmp_path / "cgroup"


def test_on_the_cpu_it_is_what_the_system_could_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal:   16000 kB\nMemFree:      200 kB\nMemAvailable:   3000 kB\n")
    monkeypatch.setattr(module, "_MEMORY_TABLE", table)
    assert free_memory(CPU) == 3000 * 1024


@pytest.mark.parametrize("text", [None, "MemFree: 200 kB\n", "MemAvailable: many kB\n", "MemAvailable:"])
def test_where_that_is_not_told_unused_memory_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None
) -> None:
    table = tmp_path / "meminfo"
    if text is not None:
        table.write_text(text)
    monkeypatch.setattr(module, "_MEMORY_TABLE", table)
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 5, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_memory(CPU) == 5 * 4096

    def refuses(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", refuses)
    assert free_memory(CPU) is None


def test_of_a_device_that_has_no_memory_nothing_is_known() -> None:
    assert free_memory(torch.device("meta")) is None


def make_group(folder: Path, limit: str, use: int, cached: int, *, version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = module._GROUP_FILES[0 if version == 2 else 1]
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{use}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cached}\n")


@pytest.mark.parametrize(
    ("line", "place", "version"),
    [("0::/", "", 2), ("0::/a/b", "a", 2), ("0::/../elsewhere", "", 2), ("4:memory:/a/b", "memory/a/b", 1)],
)
def test_a_containers_limit_counts(groups: Path, tmp_path: Path, line: str, place: str, version: int) -> None:
    """Of its own group, or of one around it; in a container the path may be one that is not to be seen there."""
    (tmp_path / "groups").write_text(f"3:cpuset:/\n{line}\nodd\n")
    make_group(groups / place, "3000", 2000, 500, version=version)
    assert free_memory(CPU) == 1500
    make_group(groups / place, "3000", 9000, 500, version=version)
    assert free_memory(CPU) == 0


def test_without_a_limit_it_is_the_machines(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "groups").write_text("0::/\n")
    whole = free_memory(CPU)
    assert whole is not None
    make_group(groups, "max", 2000, 500, version=2)
    assert free_memory(CPU) == pytest.approx(whole, rel=0.5)
