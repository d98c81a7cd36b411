"""The command line: exit statuses, one-line errors, and output a program can read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from draftwire.export import demo_model
from draftwire.export.cli import main

from .conftest import ModelMaker


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = main([*arguments, "--quiet"])
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
    stages = captured.err.splitlines()  # and nothing of the builders' chatter
    assert [stage.split()[0] for stage in stages] == [
        "Reading",
        "Running",
        "Building",
        "Checking",
        "Writing",
        "Checking",
    ]
    assert all(stage.endswith(" ...") for stage in stages)
    assert made["bundle"] == str(out)
    assert made["parity"]["top1_agreement"] >= 0.99

    assert main(["check", str(out), "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["reproduced"] == 1.0
    assert captured.err == ""

    assert main(["check", str(out)]) == 0
    text = capsys.readouterr().out
    for part in ("is whole", "top-1 agreement", "ms a token", "of the fp32 weights", "recommendation"):
        assert part in text


@pytest.mark.parametrize(("arguments", "quiet"), [(["--json"], False), ([], False), (["--json", "--quiet"], True)])
def test_the_demo_pair_tells_its_stages_unless_quiet(
    arguments: list[str], quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[bool] = []

    def folder(_cache: Path | None, *, quiet: bool) -> Path:
        asked.append(quiet)
        return Path("made")

    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "0")  # so that it is put back
    monkeypatch.setattr(demo_model, "target_folder", folder)
    monkeypatch.setattr(demo_model, "draft_folder", folder)

    assert main(["demo-model", *arguments]) == 0
    assert asked == [quiet, quiet]
    assert "made" in capsys.readouterr().out


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


# --- standard streams that are closed, full, or of a small encoding -------------------------------------------------

_STUB = """
import sys
from pathlib import Path
from draftwire.export import cli, demo_model
demo_model.target_folder = demo_model.draft_folder = lambda cache, quiet: cache
sys.exit(cli.main(sys.argv[1:]))
"""


def run_in_shell(redirections: str, *arguments: str, program: str = _STUB, **environment: str) -> tuple[int, str, str]:
    """Run the command line as a program with a shell's redirections; its status, stdout and stderr."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirections}', sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "", **environment},
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
needs_shell = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")


@needs_full_device
@pytest.mark.parametrize(
    "arguments", [["demo-model", "--cache", "x"], ["demo-model", "--json", "--cache", "x"], ["--help"]]
)
def test_a_full_disk_behind_stdout_is_one_line(arguments: list[str]) -> None:
    status, _, error = run_in_shell(">/dev/full", *arguments)

    assert status == 1
    assert error == "draftwire-export: error: the result could not be printed (No space left on device)\n"


@needs_full_device
def test_a_full_disk_behind_stderr_costs_no_export() -> None:
    program = _STUB.replace("lambda cache, quiet: cache", "lambda cache, quiet: say_stage('Building') or cache")
    program = "from draftwire.export.terminal import say_stage\n" + program

    assert run_in_shell("2>/dev/full", "demo-model", "--cache", "x", program=program) == (
        0,
        "target  x\ndraft   x\n",
        "",
    )


@needs_shell
def test_closed_streams_are_no_place_for_the_next_file() -> None:
    program = _STUB.replace("sys.exit(cli.main(sys.argv[1:]))", "") + (
        "import os\n"
        "assert cli.main(sys.argv[1:]) == 0\n"
        "null = os.stat(os.devnull).st_rdev\n"
        "sys.exit(sum(os.fstat(descriptor).st_rdev != null for descriptor in (0, 1)))\n"
    )

    assert run_in_shell("<&- >&-", "demo-model", "--cache", "x", program=program) == (0, "", "")


@needs_shell
def test_errors_go_nowhere_but_stderr() -> None:
    assert run_in_shell("2>&-", "check", "nowhere") == (1, "", "")


def test_an_encoding_that_lacks_a_character() -> None:
    status, out, error = run_in_shell("", "demo-model", "--cache", "entw\u00fcrfe-\u6a21", PYTHONIOENCODING="ascii")

    assert (status, error) == (0, "")
    assert out == "target  entw\\xfcrfe-\\u6a21\ndraft   entw\\xfcrfe-\\u6a21\n"
