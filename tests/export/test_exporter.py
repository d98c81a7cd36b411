"""The whole export on a tiny model: what a bundle holds, how it is checked, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from draftwire.export.bundle_check import check_bundle
from draftwire.export.exporter import ExportOptions, ExportResult, export_draft
from draftwire.protocol.errors import (
    BundleCorruptError,
    FingerprintMismatchError,
    InvalidParameterError,
    NonFiniteLogitsError,
    ParityError,
)
from draftwire.protocol.manifest import Manifest

from .conftest import ModelMaker


@pytest.fixture(scope="module")
def int8(make_model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExportResult]:
    out = tmp_path_factory.mktemp("bundles") / "int8"
    options = ExportOptions(quantize="int8", threads=1, compare=True, threshold=0.8)
    return out, export_draft(str(make_model("llama")), out, options)


def test_bundle_holds_what_a_device_needs(int8: tuple[Path, ExportResult]) -> None:
    out, result = int8
    manifest = Manifest.load(out)
    manifest.verify(out)

    assert manifest == result.manifest
    assert set(manifest.files) == {"model.onnx", "model.onnx.data", "reference.json", "tokenizer.json"}
    assert {path.name for path in out.iterdir()} == {*manifest.files, "manifest.json"}
    assert list(out.parent.iterdir()) == [out]  # nothing temporary is left beside it
    assert manifest.architecture == "LlamaForCausalLM"
    assert manifest.context_length == 256
    assert manifest.vocabulary.size < manifest.vocabulary.logits_size == 320
    assert manifest.vocabulary.eos_ids == [2]
    assert manifest.quantization.shared_embeddings
    assert "transformers" in manifest.source.versions


def test_report_compares_all_quantizations(int8: tuple[Path, ExportResult]) -> None:
    compared = int8[1].compared
    parity = int8[1].manifest.parity
    assert compared is not None
    assert parity is not None

    assert set(compared) == {"int4", "int8", "none"}
    assert compared["int4"].model_bytes < compared["int8"].model_bytes < compared["none"].model_bytes
    assert compared["int4"].top1_agreement <= compared["int8"].top1_agreement <= compared["none"].top1_agreement
    assert compared["none"].top1_agreement >= 0.99
    assert "use " in parity.recommendation


def test_moved_bundle_works_and_equals_the_model(
    int8: tuple[Path, ExportResult], make_model: ModelMaker, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(int8[0], moved)

    recorded = check_bundle(moved)
    live = check_bundle(moved, model=str(make_model("llama")))

    assert recorded.reproduced == 1.0
    assert recorded.manifest.parity is not None
    assert live.manifest.parity is not None
    assert recorded.manifest.parity.top1_agreement == live.manifest.parity.top1_agreement


def test_check_notices_a_changed_file(int8: tuple[Path, ExportResult], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(int8[0], broken)
    with (broken / "model.onnx.data").open("r+b") as file:
        file.seek(100)
        file.write(b"\xff\xff")

    with pytest.raises(BundleCorruptError, match=r"model\.onnx\.data differs"):
        check_bundle(broken)


def test_check_notices_a_draft_that_decides_otherwise(int8: tuple[Path, ExportResult], tmp_path: Path) -> None:
    """A bundle whose hashes are right but whose graph does not say what was recorded."""
    from dataclasses import replace

    from draftwire.protocol.manifest import BundleFile, file_sha256

    other = tmp_path / "other"
    shutil.copytree(int8[0], other)
    path = other / "reference.json"
    recorded = json.loads(path.read_text())
    for entry in recorded["continuations"]:
        entry["draft_top_ids"] = [(token + 1) % 300 for token in entry["draft_top_ids"]]
    path.write_text(json.dumps(recorded))
    manifest = Manifest.load(other)
    entry = BundleFile(size=path.stat().st_size, sha256=file_sha256(path))
    replace(manifest, files={**manifest.files, path.name: entry}).save(other)

    with pytest.raises(ParityError, match="recorded choices"):
        check_bundle(other)


def test_check_refuses_another_vocabulary(
    int8: tuple[Path, ExportResult], make_model: ModelMaker, tmp_path: Path
) -> None:
    other = tmp_path / "other-vocabulary"
    shutil.copytree(make_model("llama"), other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))

    with pytest.raises(FingerprintMismatchError, match="another vocabulary"):
        check_bundle(int8[0], model=str(other))


def test_an_old_bundle_is_replaced(make_model: ModelMaker, tmp_path: Path) -> None:
    out = tmp_path / "draft"
    shutil.copytree(make_model("llama"), out)
    (out / "manifest.json").write_text("{}")

    export_draft(str(make_model("llama")), out, ExportOptions(quantize="none", threads=1))

    Manifest.load(out).verify(out)
    assert not (out / "config.json").exists()
    assert list(tmp_path.iterdir()) == [out]


def test_other_content_is_not_replaced(make_model: ModelMaker, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")

    with pytest.raises(InvalidParameterError, match="not empty"):
        export_draft(str(make_model("llama")), tmp_path, ExportOptions())

    assert (tmp_path / "thesis.txt").read_text() == "precious"


def test_below_the_threshold_nothing_is_left(make_model: ModelMaker, tmp_path: Path) -> None:
    with pytest.raises(ParityError, match=r"below the threshold 1\.00") as caught:
        export_draft(str(make_model("llama")), tmp_path / "out", ExportOptions(threads=1, threshold=1.0))

    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_draft_can_be_kept_under_another_name(make_model: ModelMaker, tmp_path: Path) -> None:
    options = ExportOptions(threads=1, threshold=1.0, keep_failed=True)
    with pytest.raises(ParityError, match="kept for inspection"):
        export_draft(str(make_model("llama")), tmp_path / "out", options)

    assert [path.name for path in tmp_path.iterdir()] == ["out.failed"]


def test_nan_weights_are_refused(make_model: ModelMaker, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "nan"
    shutil.copytree(make_model("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        export_draft(str(folder), tmp_path / "out", ExportOptions())

    assert not (tmp_path / "out").exists()


def test_eos_ids_are_the_union_of_all_sources(make_model: ModelMaker, tmp_path: Path) -> None:
    from draftwire.export.source import SourceModel
    from draftwire.export.torch_model import TorchModel

    folder = tmp_path / "many-ends"
    shutil.copytree(make_model("llama"), folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    generation["eos_token_id"] = [2, 3]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    config = json.loads((folder / "config.json").read_text())
    config["eos_token_id"] = 1
    (folder / "config.json").write_text(json.dumps(config))

    assert TorchModel(SourceModel("many-ends", folder)).record(tokens=2).eos_ids == (1, 2, 3)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"block_size": 31}, "--block-size"),
        ({"block_size": 32, "quantize": "none"}, "--block-size"),
        ({"threshold": 1.5}, "--threshold"),
        ({"threshold": float("nan")}, "--threshold"),
        ({"threads": 0}, "--threads"),
    ],
)
def test_options_out_of_range_name_the_field(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        ExportOptions(**options)  # type: ignore[arg-type]
    assert caught.value.field == field
