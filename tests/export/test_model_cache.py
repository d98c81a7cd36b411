"""Folders made once: damage is noticed, and a half-made one is never seen."""

from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.export.model_cache import COMPLETE_NAME, cache_root, is_complete, kept_folder, mark_complete


def make(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(b"weights")
    mark_complete(folder)


def test_made_once(tmp_path: Path) -> None:
    made: list[Path] = []

    def counted(folder: Path) -> None:
        made.append(folder)
        make(folder)

    first = kept_folder(tmp_path / "a" / "kept", counted, complete=is_complete)
    second = kept_folder(tmp_path / "a" / "kept", counted, complete=is_complete)

    assert first == second == tmp_path / "a" / "kept"
    assert len(made) == 1
    assert list((tmp_path / "a").iterdir()) == [first]


@pytest.mark.parametrize("damage", ["shorter", "changed", "missing", "no marker", "broken marker"])
def test_damage_is_noticed_and_made_good(damage: str, tmp_path: Path) -> None:
    folder = kept_folder(tmp_path / "kept", make, complete=is_complete)
    file = folder / "inner" / "weights"
    if damage == "shorter":
        file.write_bytes(b"weigh")
    elif damage == "changed":
        file.write_bytes(b"wEights")
    elif damage == "missing":
        file.unlink()
    elif damage == "no marker":
        (folder / COMPLETE_NAME).unlink()
    else:
        (folder / COMPLETE_NAME).write_text("[1, 2")

    assert not is_complete(folder)
    assert is_complete(kept_folder(folder, make, complete=is_complete))
    assert file.read_bytes() == b"weights"


def test_a_failed_making_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise RuntimeError("cut off")

    with pytest.raises(RuntimeError, match="cut off"):
        kept_folder(tmp_path / "kept", fail, complete=is_complete)
    assert list(tmp_path.iterdir()) == []


def test_environment_names_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTWIRE_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    assert cache_root(tmp_path / "given") == tmp_path / "given"
