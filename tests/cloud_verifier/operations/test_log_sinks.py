"""Files that are rotated, full, or gone; and standard error that is not a file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from draftwire.cloud_verifier.operations.log_sinks import FileSink, StderrSink
from draftwire.protocol.errors import InvalidParameterError


def test_lines_are_appended_and_there_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("before\n")
    sink = FileSink(path)
    sink.write("one")
    assert path.read_text() == "before\none\n"
    sink.write("two \udcff \u2028")
    assert path.read_text("utf-8") == "before\none\ntwo \\udcff \u2028\n"


def test_a_new_file_is_not_for_everyone_to_read(tmp_path: Path) -> None:
    FileSink(tmp_path / "log").write("one")
    assert (tmp_path / "log").stat().st_mode & 0o007 == 0


def test_a_file_that_was_moved_away_or_removed_is_made_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "log", tmp_path / "log.1"
    sink = FileSink(path)
    sink.write("one")
    path.rename(moved)
    sink.write("two")
    assert (moved.read_text(), path.read_text()) == ("one\n", "two\n")
    path.unlink()
    sink.write("three")
    assert path.read_text() == "three\n"
    path.rename(moved)
    path.touch()  # as logrotate's `create` does
    sink.write("four")
    assert (moved.read_text(), path.read_text()) == ("three\n", "four\n")


def test_a_folder_that_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    sink = FileSink(folder / "log")
    (folder / "log").unlink()
    folder.rmdir()
    with pytest.raises(FileNotFoundError):
        sink.write("lost")
    folder.mkdir()
    sink.write("found")
    assert (folder / "log").read_text() == "found\n"


@pytest.mark.parametrize("name", ["missing/log", "."])
def test_a_file_that_cannot_be_had_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"--log-file: .* cannot be written: "):
        FileSink(tmp_path / name)


def test_a_full_disk_is_an_error_at_each_line() -> None:
    sink = FileSink(Path("/dev/full"))
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            sink.write("x" * 100)


_LIMITED = """
import resource, sys
from pathlib import Path
from draftwire.cloud_verifier.operations.log_sinks import FileSink
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
sink, failed = FileSink(Path(sys.argv[1])), 0
for number in range(20):
    try:
        sink.write(f"line {number:3}")
    except OSError:
        failed += 1
assert failed == 9, failed
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sink.write("again")
"""


def test_a_line_that_was_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    """Nine bytes a line: eleven fit into 100, the twelfth by one byte."""
    path = tmp_path / "log"
    subprocess.run([sys.executable, "-c", _LIMITED, str(path)], check=True, timeout=60)
    assert path.read_text().splitlines() == [*(f"line {number:3}" for number in range(11)), "l", "again"]


def test_standard_error_of_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    StderrSink().write("one")
    assert capfd.readouterr().err == "one\n"


def test_standard_error_that_is_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    StderrSink().write("one")
    assert capsys.readouterr().err == "one\n"


def test_no_standard_error_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    StderrSink().write("one")


def test_standard_error_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "stderr", closed)
        with pytest.raises(BrokenPipeError):
            StderrSink().write("one")
