from __future__ import annotations

import os
from pathlib import Path

import pytest
from draftwire.edge_client.bench.outputs import check_outputs, write_output
from draftwire.protocol.errors import InvalidParameterError

full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


def test_trying_changes_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    old, new, link = tmp_path / "old", tmp_path / "new", tmp_path / "link"
    old.write_text("kept", "utf-8")
    link.symlink_to(tmp_path / "behind")
    check_outputs({"--json": str(old), "--record": str(new), "--plot": str(link)})
    assert old.read_text("utf-8") == "kept"
    assert sorted(tmp_path.iterdir()) == [link, old]


@pytest.mark.parametrize("file", ["", ".", "no/such/folder/all.json", "x" * 300])
def test_a_file_that_cannot_be_written_is_refused(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidParameterError, match=f"^--record: {file} cannot be written: "):
        check_outputs({"--json": "good.json", "--record": file})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "./a", "link", "hard", "sub/../a"])
@pytest.mark.parametrize("there", [True, False])
def test_one_file_for_two_options_is_refused_by_whatever_name(
    name: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("link").symlink_to("a")
    if there:
        Path("a").touch()
        os.link("a", "hard")
    elif name == "hard":
        return
    with pytest.raises(InvalidParameterError, match=f"^--plot: {name} is the file of --json, too; "):
        check_outputs({"--json": "a", "--record": "b", "--plot": name})


@full
def test_what_is_no_file_may_be_given_twice_and_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a reader
    check_outputs({"--json": "/dev/full", "--record": "/dev/full", "--plot": str(tmp_path / "fifo")})


@full
def test_a_full_disk_is_told(tmp_path: Path) -> None:
    assert write_output("--json", "/dev/full", "{}") == ("--json: /dev/full cannot be written: No space left on device")
    assert write_output("--json", str(tmp_path / "all.json"), "ä\n") is None
    assert write_output("--plot", str(tmp_path / "chart.png"), b"\x89\n") is None
    assert (tmp_path / "all.json").read_bytes() == "ä\n".encode()
    assert (tmp_path / "chart.png").read_bytes() == b"\x89\n"
