"""Making a folder beside its place: one process at a time, and no trace of one that was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from draftwire.export.model_cache import is_complete, kept_folder, mark_complete
from draftwire.export.work_folder import replace_folder, work_folder

# Arguments: the folder, a folder of signs, this process's number, how many there are. Whoever makes the folder waits
# until every process is about to ask for it.
_TOGETHER = """
import sys, time
from pathlib import Path
from draftwire.export.model_cache import is_complete, kept_folder, mark_complete
folder, signs, number, count = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
def make(made):
    (signs / f"made-{number}").touch()
    while len(list(signs.glob("ready-*"))) < count:
        time.sleep(0.01)
    (made / "weights").write_bytes(b"x" * 100_000)
    mark_complete(made)
(signs / f"ready-{number}").touch()
kept_folder(folder, make, complete=is_complete)
assert is_complete(folder)
"""

# Says when it has begun to make the folder, and ends at the next line of its input.
_HELD = """
import sys
from pathlib import Path
from draftwire.export.model_cache import is_complete, kept_folder, mark_complete
def make(made):
    (made / "weights").write_bytes(b"half")
    print("making", flush=True)
    sys.stdin.readline()
    mark_complete(made)
kept_folder(Path(sys.argv[1]), make, complete=is_complete)
"""

Holder = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def hold() -> Holder:
    def start(folder: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _HELD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "making\n"
        return process

    return start


def make(made: Path) -> None:
    (made / "weights").write_bytes(b"whole")
    mark_complete(made)


def refuse(_made: Path) -> None:
    raise AssertionError("made a second time")


@pytest.mark.parametrize("stale", [False, True])
def test_of_several_processes_one_makes_it(stale: bool, tmp_path: Path) -> None:
    folder, signs = tmp_path / "cache" / "kept", tmp_path / "signs"
    signs.mkdir()
    if stale:
        folder.mkdir(parents=True)
        (folder / "junk").write_text("half of something")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _TOGETHER, str(folder), str(signs), str(number), "3"],
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    errors = [process.communicate()[1] for process in processes]

    assert errors == ["", "", ""]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(list(signs.glob("made-*"))) == 1
    assert list(folder.parent.iterdir()) == [folder]
    assert not (folder / "junk").exists()


def test_the_second_says_that_it_waits_and_uses_the_result(hold: Holder, tmp_path: Path) -> None:
    with hold(tmp_path / "kept") as first:
        told: list[str] = []

        def say(stage: str) -> None:
            told.append(stage)
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()

        found = kept_folder(tmp_path / "kept", refuse, complete=is_complete, say=say)

    assert told == ["Waiting for another process that makes kept"]
    assert (found / "weights").read_bytes() == b"half"
    assert list(tmp_path.iterdir()) == [found]


def test_what_a_killed_process_left_is_removed(hold: Holder, tmp_path: Path) -> None:
    with hold(tmp_path / "kept") as killed:
        killed.kill()
    other = tmp_path / ".kept.other.abcdefgh.partial"  # of a folder named "kept.other", perhaps being made now
    other.mkdir()
    assert [path.name for path in tmp_path.glob(".kept.????????.partial")] != []

    folder = kept_folder(tmp_path / "kept", make, complete=is_complete)

    assert (folder / "weights").read_bytes() == b"whole"
    assert set(tmp_path.iterdir()) == {folder, other}


def test_a_folder_renamed_to_its_place_is_no_loss(tmp_path: Path) -> None:
    with work_folder(tmp_path / "place") as folder:
        (folder / "file").write_text("new")
        replace_folder(folder, tmp_path / "place")

    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_the_former_folder_stays_if_the_new_one_cannot_come(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "file").write_text("former")

    with pytest.raises(FileNotFoundError):
        replace_folder(tmp_path / "missing", place)

    assert (place / "file").read_text() == "former"
    assert list(tmp_path.iterdir()) == [place]
