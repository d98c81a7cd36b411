"""Which builder serves which architecture, and that every served graph equals the torch model."""

from __future__ import annotations

from pathlib import Path

import pytest
from draftwire.export.exporter import ExportOptions, export_draft
from draftwire.export.optimum_builder import optimum_available
from draftwire.protocol.errors import UnsupportedModelError
from draftwire.protocol.manifest import Manifest

from .conftest import ModelMaker

needs_optimum = pytest.mark.skipif(
    not optimum_available(), reason="optimum-onnx needs transformers 4.57, this environment has another line"
)

FUSED = ("llama", "qwen2", "qwen3", "gemma3", "phi3", "mistral")
TRACED_ONLY = ("gpt2", "gpt_neox")


def export(model: Path, out: Path, **options: object) -> Manifest:
    return export_draft(str(model), out, ExportOptions(threads=1, **options)).manifest  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FUSED)
def test_fused_builder_serves(kind: str, make_model: ModelMaker, tmp_path: Path) -> None:
    manifest = export(make_model(kind), tmp_path / "out", quantize="none")

    assert manifest.builder == "fused"
    assert manifest.kv.layout == "shared_buffer"
    assert (manifest.kv.heads, manifest.kv.head_size) == (2, 16)
    assert manifest.graph.inputs == ["input_ids", "attention_mask"]
    assert manifest.parity is not None
    assert manifest.parity.top1_agreement >= 0.99
    assert manifest.parity.max_difference < 1e-3
    assert manifest.context_length == 256  # with a window of 64: the graph equals the model beyond it


@needs_optimum
@pytest.mark.parametrize("kind", TRACED_ONLY)
def test_optimum_serves_what_the_fused_builder_lacks(kind: str, make_model: ModelMaker, tmp_path: Path) -> None:
    manifest = export(make_model(kind), tmp_path / "out", quantize="int8", threshold=0.8)

    assert manifest.builder == "optimum"
    assert manifest.kv.layout == "concatenated"
    assert manifest.graph.inputs == ["input_ids", "attention_mask", "position_ids"]
    assert (manifest.kv.layers, manifest.kv.heads, manifest.kv.head_size) == (2, 4, 16)


@needs_optimum
def test_optimum_on_request_for_a_model_that_both_serve(make_model: ModelMaker, tmp_path: Path) -> None:
    manifest = export(make_model("gemma3"), tmp_path / "out", quantize="none", builder="optimum")

    assert manifest.kv.layout == "concatenated"
    assert manifest.quantization.shared_embeddings
    assert manifest.context_length == 256  # checked beyond the window of 64


def test_unserved_model_is_one_line_with_versions_and_a_way_out(make_model: ModelMaker, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        export(make_model("gpt2"), tmp_path / "out", builder="fused")

    message = str(caught.value)
    assert "\n" not in message
    for part in ("gpt2", "transformers ", "onnxruntime-genai ", "use another model"):
        assert part in message
    assert list(tmp_path.iterdir()) == []
