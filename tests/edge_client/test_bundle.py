from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from draftwire.edge_client.bundle import DraftBundle
from draftwire.edge_client.drafter import Drafter
from draftwire.protocol.errors import BundleCorruptError, BundleNotFoundError
from draftwire.protocol.manifest import Manifest

from .conftest import byte_level_tokenizer, write_manifest

INPUTS = ["input_ids", "attention_mask"]


def test_holds_what_the_folder_holds(fused_bundle: Path) -> None:
    bundle = DraftBundle.load(fused_bundle)
    assert bundle.manifest == Manifest.load(fused_bundle)
    assert bundle.tokenizer.fingerprint.hex() == bundle.manifest.vocabulary.fingerprint
    assert bundle.chat_template is not None
    text = bundle.chat_template.render([{"role": "user", "content": "hi"}])
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_loads_its_drafter(fused_bundle: Path) -> None:
    drafter = DraftBundle.load(fused_bundle).load_drafter(threads=1)
    np.testing.assert_array_equal(drafter.feed([3, 4]), Drafter.load(fused_bundle, threads=1).feed([3, 4]))


def test_template_knows_bos_and_eos(bundle_copy: Path) -> None:
    (bundle_copy / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}", encoding="utf-8")
    write_manifest(bundle_copy, layout="shared_buffer", inputs=INPUTS)
    template = DraftBundle.load(bundle_copy).chat_template
    assert template is not None
    assert template.render([{"role": "user", "content": "hi"}]) == "<|im_start|><|im_end|>"


def test_template_may_be_absent(bundle_copy: Path) -> None:
    (bundle_copy / "chat_template.jinja").unlink()
    write_manifest(bundle_copy, layout="shared_buffer", inputs=INPUTS)
    assert DraftBundle.load(bundle_copy).chat_template is None


def test_a_moved_folder_loads(fused_bundle: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(fused_bundle, tmp_path / "a" / "b")
    assert DraftBundle.load(moved).load_drafter(threads=1).length == 0


@pytest.mark.parametrize("path", ["nowhere", "model.onnx/inside"])
def test_no_folder(fused_bundle: Path, path: str) -> None:
    with pytest.raises(BundleNotFoundError, match="no draft bundle at"):
        DraftBundle.load(fused_bundle / path)


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json", "chat_template.jinja"])
def test_every_file_is_hashed(bundle_copy: Path, name: str) -> None:
    path = bundle_copy / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleCorruptError, match=f"{name} differs from its manifest"):
        DraftBundle.load(bundle_copy)
    path.unlink()
    with pytest.raises(BundleNotFoundError, match=name):
        DraftBundle.load(bundle_copy)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "draftwire-bundle", "format_version": 99}', "\x00"])
def test_manifests_that_are_none(bundle_copy: Path, content: str) -> None:
    (bundle_copy / "manifest.json").write_text(content, encoding="utf-8")
    with pytest.raises(BundleCorruptError, match=r"manifest\.json"):
        DraftBundle.load(bundle_copy)


def test_another_vocabulary_is_refused_even_unverified(bundle_copy: Path) -> None:
    backend = byte_level_tokenizer()
    backend.add_tokens(["<extra>"])
    backend.save(str(bundle_copy / "tokenizer.json"))
    with pytest.raises(BundleCorruptError, match="not the vocabulary its manifest names"):
        DraftBundle.load(bundle_copy, verify=False)


@pytest.mark.parametrize("size", [0, -1, 361, 10**6])
def test_a_vocabulary_size_that_fits_nothing_is_refused(bundle_copy: Path, size: int) -> None:
    manifest = Manifest.load(bundle_copy)
    replace(manifest, vocabulary=replace(manifest.vocabulary, size=size)).save(bundle_copy)
    with pytest.raises(BundleCorruptError, match=f"vocabulary size {size} fits neither"):
        DraftBundle.load(bundle_copy)


def test_a_broken_template_is_told(bundle_copy: Path) -> None:
    (bundle_copy / "chat_template.jinja").write_text("{% if %}", encoding="utf-8")
    with pytest.raises(BundleCorruptError, match=r"chat_template\.jinja cannot be used"):
        DraftBundle.load(bundle_copy, verify=False)
