from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from draftwire.cloud_verifier.targets.model_loading import load_tokenizer
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import DraftwireError, InvalidParameterError, ModelNotFoundError, UnsupportedModelError
from safetensors.torch import load_file
from transformers import T5Config

MakeModel = Callable[..., str]


def refusal(error: type[DraftwireError], model: str, **options: Any) -> str:
    with pytest.raises(error) as caught:
        TransformersTarget.load(model, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    return message


@pytest.fixture
def copied(make_model: MakeModel, tmp_path: Path) -> Path:
    """A private copy of a tiny Llama, to be broken."""
    return Path(shutil.copytree(make_model("llama"), tmp_path / "copied"))


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("model", ["", "./nowhere", "/no/such/folder", "~/nothing-here", "a/b/c", "gone.gguf"])
def test_what_is_no_model_is_not_looked_up_anywhere(model: str) -> None:
    refusal(ModelNotFoundError, model)


def test_a_hub_id_that_cannot_be_had_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "nobody/nothing-at-all" in refusal(ModelNotFoundError, "nobody/nothing-at-all")


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "config.json" in refusal(ModelNotFoundError, str(tmp_path))


def test_a_folder_without_weights(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    assert "no weights" in refusal(ModelNotFoundError, str(copied))


def test_pickled_weights_are_not_read(copied: Path) -> None:
    weights = copied / "model.safetensors"
    torch.save(load_file(weights), copied / "pytorch_model.bin")
    weights.unlink()
    assert "save_pretrained" in refusal(ModelNotFoundError, str(copied))


def test_code_that_comes_with_a_model_is_run_only_if_asked(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr("sys.path", [*sys.path])
    ran = copied / "ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\nclass C: pass\nclass M: pass\n"
    (copied / "brought.py").write_text(code)
    change_config(
        copied,
        model_type="brought",
        auto_map={"AutoConfig": "brought.C", "AutoModelForCausalLM": "brought.M"},
    )
    refusal(UnsupportedModelError, str(copied))
    assert not ran.exists()
    refusal(UnsupportedModelError, str(copied), trust_remote_code=True)  # it is no model, but it was run
    assert ran.exists()


def test_damaged_weights(copied: Path) -> None:
    (copied / "model.safetensors").write_bytes(b"damaged")
    refusal(UnsupportedModelError, str(copied))


def test_an_unknown_architecture(copied: Path) -> None:
    change_config(copied, model_type="perceptron-9000", architectures=["Perceptron9000"])
    assert "perceptron-9000" in refusal(UnsupportedModelError, str(copied))


def test_damaged_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF but not really")
    refusal(UnsupportedModelError, str(path))


def test_a_folder_without_tokenizer(copied: Path) -> None:
    for path in copied.glob("*token*"):
        path.unlink()
    with pytest.raises(DraftwireError):
        TransformersTarget.load(str(copied))


def test_encoder_decoder_models_are_refused(tmp_path: Path) -> None:
    T5Config(vocab_size=96, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    assert "encoder-decoder" in refusal(UnsupportedModelError, str(tmp_path))


@pytest.mark.parametrize("kind", ["chunked_attention", "linear_attention"])
def test_hybrid_layers_are_refused(make_model: MakeModel, tmp_path: Path, kind: str) -> None:
    folder = Path(shutil.copytree(make_model("qwen3"), tmp_path / "hybrid"))
    change_config(folder, layer_types=["full_attention", kind])
    assert kind in refusal(UnsupportedModelError, str(folder))


def test_long_rope_is_kept_below_its_switch(make_model: MakeModel) -> None:
    rope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    folder = make_model("phi3", rope_scaling=rope, original_max_position_embeddings=64)
    assert TransformersTarget.load(folder).info.max_context == 64


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "abacus"}, "device"),
        ({"device": "cuda:77"}, "device"),
        ({"dtype": "float7"}, "dtype"),
        ({"threads": 0}, "threads"),
    ],
)
def test_options_out_of_range(make_model: MakeModel, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        TransformersTarget.load(make_model("llama"), **options)
    assert caught.value.field == field


def test_the_tokenizer_file_is_served_byte_for_byte(copied: Path) -> None:
    path = copied / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=7))
    assert load_tokenizer(str(copied)).json == path.read_text()


def test_the_chat_template_is_served(copied: Path) -> None:
    assert load_tokenizer(str(copied)).chat_template is None
    (copied / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_tokenizer(str(copied)).chat_template == "{{ messages[0].content }}"
