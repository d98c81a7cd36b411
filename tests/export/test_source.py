"""Where models come from, and what is said when they do not."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from draftwire.export.source import opened_source
from draftwire.protocol.errors import ModelNotFoundError

from .conftest import ModelMaker


def refusal(model: str) -> str:
    with pytest.raises(ModelNotFoundError) as caught, opened_source(model):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_folder(make_model: ModelMaker) -> None:
    folder = make_model("llama")
    with opened_source(str(folder)) as source:
        assert (source.name, source.folder, source.sha256) == ("llama", folder, None)


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    assert "no such folder or file" in refusal(str(tmp_path / "nothing"))
    assert "no such folder or file" in refusal("model.gguf")


def test_folder_that_is_no_model(tmp_path: Path) -> None:
    assert "no config.json" in refusal(str(tmp_path))


def test_unknown_hub_id_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "the hub did not give it" in refusal("nobody/no-such-model")


@pytest.mark.parametrize("content", [b"", b"not a gguf file", b"GGUF" + struct.pack("<IQQ", 3, 5, 7) + b"\x00" * 40])
def test_corrupt_gguf(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    assert "GGUF" in refusal(str(file))
