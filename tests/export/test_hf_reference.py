"""The co-located references: the assistant carries the draft's weights, and both ways to generate are timed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from draftwire.export.exporter import ExportOptions, export_draft
from draftwire.export.graph_runner import GraphRunner
from draftwire.export.hf_reference import carry_draft_weights, main, measure
from draftwire.export.quantize import dequantize, quantize_rows
from draftwire.protocol.errors import UnsupportedModelError
from draftwire.protocol.manifest import Manifest, QuantizationSpec
from transformers import AutoModelForCausalLM

from .conftest import ModelMaker

PROMPTS = [[5, 6, 7, 8], [40, 41, 42]]


def load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def quantized(scheme: str, block_size: int | None) -> Manifest:
    """As much of a manifest as is read."""
    specification = QuantizationSpec(scheme=scheme, block_size=block_size)  # type: ignore[arg-type]
    return SimpleNamespace(quantization=specification)  # type: ignore[return-value]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(dequantize(quantize_rows(weight.detach().numpy(), bits=4, block_size=32)))


@pytest.fixture(scope="module")
def bundle(make_model: ModelMaker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "llama-int4"
    options = ExportOptions(quantize="int4", block_size=32, builder="fused", threshold=0.0)
    export_draft(str(make_model("llama")), folder, options)
    return folder


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_every_matrix_takes_the_bundles_round_trip_and_nothing_else_does(make_model: ModelMaker, kind: str) -> None:
    model, original = load(make_model(kind)), load(make_model(kind))
    said = carry_draft_weights(model, quantized("int4", 32))
    assert "int4 in blocks of 32" in said
    changed = 0
    for (name, found), before in zip(model.named_parameters(), original.parameters(), strict=True):
        kept = before.ndim < 2 or "wpe" in name  # norms, biases, position tables
        flipped = kind == "gpt2" and ".c_" in name  # which keeps its matrices the other way round
        expected = before if kept else (rounded(before.T.contiguous()).T if flipped else rounded(before))
        assert torch.equal(found, expected), name
        changed += not kept
    assert changed >= 9
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert (head.data_ptr() == embedding.data_ptr()) == bool(original.config.tie_word_embeddings)


def test_an_unquantized_draft_is_the_model_itself(make_model: ModelMaker) -> None:
    model, original = load(make_model("llama")), load(make_model("llama"))
    assert "not quantized" in carry_draft_weights(model, quantized("none", None))
    assert all(map(torch.equal, model.parameters(), original.parameters()))


def test_the_assistant_says_what_the_bundles_graph_says(make_model: ModelMaker, bundle: Path) -> None:
    manifest = Manifest.load(bundle)
    runner = GraphRunner(bundle / manifest.graph.file, graph=manifest.graph, kv=manifest.kv, capacity=64)
    ids = list(range(10, 60))
    graph = runner.feed(ids)

    def distance(model: Any) -> float:
        with torch.inference_mode():
            return float(np.abs(model(torch.tensor([ids])).logits[0].numpy() - graph).mean())

    original, assistant = load(make_model("llama")), load(make_model("llama"))
    carry_draft_weights(assistant, manifest)
    assert distance(assistant) < 0.25 * distance(original)  # activations are 8-bit in the graph alone


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_times_the_target_alone_and_assisted(make_model: ModelMaker, temperature: float) -> None:
    model = load(make_model("llama"))
    model.generation_config.eos_token_id = None
    options: dict[str, Any] = {"max_tokens": 9, "temperature": temperature}
    for assistant in (None, load(make_model("llama"))):
        speed = measure(model, PROMPTS, assistant=assistant, **options)
        assert speed.tokens == 18
        assert speed.tokens_per_second > 0
        assert speed.ttft_ms > 0


def test_what_transformers_cannot_do_is_one_line(make_model: ModelMaker) -> None:
    with pytest.raises(UnsupportedModelError, match="transformers cannot generate with this pair"):
        measure(load(make_model("llama")), PROMPTS, max_tokens=4, assistant="no model")


def test_reports_as_text_and_as_json(
    make_model: ModelMaker, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(PROMPTS), encoding="utf-8")
    common = [str(make_model("llama")), "--draft", str(bundle), "--max-tokens", "6", "--dtype", "float32"]
    assert main([*common, "--token-ids", str(ids), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["generate"]["tokens_per_second"] > 0
    assert report["assisted"]["tokens"] > 0
    assert report["assistant"] == "torch model in float32 with the draft's weights, int4 in blocks of 32, dequantized"
    assert main([*common, "--prompt", "the quick brown fox"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["generate", "assisted", "The"]


@pytest.mark.parametrize("content", ["", "[]", "[[]]", "[1, 2]", '[["a"]]', "[[true]]"])
def test_ids_that_are_none(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    file = tmp_path / "ids.json"
    file.write_text(content, encoding="utf-8")
    assert main(["x", "--draft", str(bundle), "--token-ids", str(file)]) == 2
    assert "error: --token-ids: " in capsys.readouterr().err


def test_failures_are_one_line(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["x", "--draft", str(tmp_path / "nothing")]) == 1
    assert main([str(tmp_path / "nothing"), "--draft", str(bundle), "--token-ids", str(tmp_path / "none")]) == 2
    assert main(["x", "--draft", str(bundle), "--max-tokens", "1"]) == 2
    assert main([str(tmp_path / "nothing"), "--draft", str(bundle), "--prompt", "a"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 4
    assert all(line.startswith("python -m draftwire.export.hf_reference: error: ") for line in err)
