from __future__ import annotations

import importlib.metadata
import json
import subprocess
from datetime import datetime
from pathlib import Path

import pytest
from draftwire.edge_client.bench import provenance as module
from draftwire.edge_client.bench.provenance import describe_draft, provenance
from draftwire.protocol.manifest import Manifest


def git(folder: Path, *arguments: str) -> None:
    options = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *options, "-C", str(folder), *arguments], check=True, capture_output=True)


def test_says_what_the_figures_belong_to() -> None:
    found = provenance(["bench", "--json", "a file"])
    assert found["command"] == "draftwire bench --json 'a file'"
    assert found["draftwire"] == importlib.metadata.version("draftwire")
    assert found["libraries"]["onnxruntime"] == importlib.metadata.version("onnxruntime")
    assert found["machine"]["cores"] >= found["machine"]["usable_cores"] >= 1
    assert found["machine"]["processor"]
    assert datetime.fromisoformat(found["date"]).tzinfo is not None
    json.dumps(found)


def test_names_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    assert provenance([])["commit"] is None
    git(tmp_path, "init")
    assert provenance([])["commit"] is None  # nothing was committed yet
    (tmp_path / "file").write_text("a", encoding="utf-8")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    clean = provenance([])["commit"]
    assert len(clean) == 40
    (tmp_path / "file").write_text("b", encoding="utf-8")
    assert provenance([])["commit"] == f"{clean}+changes"


def test_goes_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert provenance([])["commit"] is None


def test_names_the_draft(fused_bundle: Path) -> None:
    manifest = Manifest.load(fused_bundle)
    found = describe_draft(manifest)
    assert found["name"] == "tiny"
    assert found["fingerprint"] == manifest.vocabulary.fingerprint
    assert found["sha256"] == manifest.files["model.onnx"].sha256
