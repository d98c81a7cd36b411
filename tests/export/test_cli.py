"""The command line: exit statuses, one-line errors, and output a program can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from draftwire.export.cli import main

from .conftest import ModelMaker


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("draftwire-export: error: ")
    return status, lines[0]


def test_draft_then_check_as_json(make_model: ModelMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "draft"
    assert main(["draft", str(make_model("llama")), "--out", str(out), "--quantize", "none", "--json"]) == 0
    captured = capsys.readouterr()
    made = json.loads(captured.out)
    assert captured.err == ""  # the builders' chatter stays away
    assert made["bundle"] == str(out)
    assert made["parity"]["top1_agreement"] >= 0.99

    assert main(["check", str(out), "--json"]) == 0
    checked = json.loads(capsys.readouterr().out)
    assert checked["reproduced"] == 1.0

    assert main(["check", str(out)]) == 0
    text = capsys.readouterr().out
    for part in ("is whole", "top-1 agreement", "ms a token", "of the fp32 weights", "recommendation"):
        assert part in text


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["draft", "model"],
        ["draft", "model", "--out", "x", "--quantize", "int3"],
        ["draft", "model", "--out", "x", "--threads", "many"],
    ],
)
def test_wrong_use_exits_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "draftwire-export" in capsys.readouterr().err


def test_values_out_of_range_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = failure(capsys, "draft", "x", "--out", str(tmp_path / "o"), "--block-size", "33")
    assert (status, "--block-size" in line) == (2, True)
    status, line = failure(capsys, "check", str(tmp_path), "--threads", "0")
    assert (status, "--threads" in line) == (2, True)


def test_taken_out_folder_exits_2(make_model: ModelMaker, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(make_model("llama"))
    status, line = failure(capsys, "draft", model, "--out", model)
    assert (status, "not empty" in line) == (2, True)


def test_unknown_model_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = failure(capsys, "draft", str(tmp_path / "none"), "--out", str(tmp_path / "o"))
    assert (status, "no such folder or file" in line) == (1, True)
    assert list(tmp_path.iterdir()) == []


def test_no_bundle_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = failure(capsys, "check", str(tmp_path))
    assert (status, "no draft bundle" in line) == (1, True)


def test_unknown_architecture_exits_1(
    make_model: ModelMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    folder = tmp_path / "odd"
    shutil.copytree(make_model("llama"), folder)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "odd", "architectures": ["OddModel"]}
    (folder / "config.json").write_text(json.dumps(config))

    status, line = failure(capsys, "draft", str(folder), "--out", str(tmp_path / "out"))
    assert status == 1
    for part in ("odd", "transformers ", "use "):
        assert part in line
    assert not (tmp_path / "out").exists()


def test_unwritable_out_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    status, line = failure(capsys, "draft", "x", "--out", str(tmp_path / "file" / "below"))
    assert (status, "check the folder" in line) == (1, True)


def test_help_needs_no_heavy_library() -> None:
    program = (
        "import sys\nfrom draftwire.export.cli import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'onnxruntime') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
