"""Tiny random models of every architecture, as Hugging Face folders with a tiny tokenizer."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..warm_python import WarmPython

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

ModelMaker = Callable[..., Path]

_TEXT = [
    "the quick brown fox jumps over the lazy dog and then some more text to learn merges from",
    "List eight household items. Write a Python function that returns a number, with a docstring.",
]
_SHARED: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "initializer_range": 0.08,
}
_WITHOUT_KV = {name: value for name, value in _SHARED.items() if name != "num_key_value_heads"}
_GPT2 = {"vocab_size": 320, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.08}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_SHARED, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2Config", {**_SHARED, "tie_word_embeddings": True}),
    "qwen3": ("Qwen3Config", {**_SHARED, "head_dim": 16, "tie_word_embeddings": False}),
    "gemma3": (
        "Gemma3TextConfig",
        {**_SHARED, "num_hidden_layers": 6, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 64},
    ),
    "phi3": ("Phi3Config", {**_SHARED, "original_max_position_embeddings": 256}),
    "mistral": ("MistralConfig", {**_SHARED, "head_dim": 16, "sliding_window": 64}),
    "gpt2": ("GPT2Config", {**_GPT2, "bos_token_id": 1, "eos_token_id": 2}),
    "gpt_neox": ("GPTNeoXConfig", {**_WITHOUT_KV, "rotary_pct": 0.25}),
}


def tiny_tokenizer(**options: Any) -> Any:
    """A byte-level BPE tokenizer of fewer tokens than the models have logits, so that padding ids exist."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=310,
        special_tokens=["<pad>", "<s>", "</s>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_TEXT, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>", **options
    )


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> ModelMaker:
    """Write a tiny random model of an architecture as a Hugging Face folder, once a combination."""
    made: dict[str, Path] = {}

    def make(kind: str, *, name: str | None = None, **changes: Any) -> Path:
        key = f"{kind} {name} {sorted(changes.items())}"
        if key not in made:
            config_class, fields = ARCHITECTURES[kind]
            torch.manual_seed(0)
            config = getattr(transformers, config_class)(**{**fields, **changes})
            folder = tmp_path_factory.mktemp("models") / (name or kind)
            with contextlib.redirect_stderr(io.StringIO()):
                model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
                model.save_pretrained(folder)
                tiny_tokenizer().save_pretrained(folder)
            made[key] = folder
        return made[key]

    return make


@pytest.fixture(scope="session", autouse=True)
def build_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the fused builder build each model folder once in a test run, and import for both builders but twice."""
    from draftwire.export import builder_process, exporter

    built: dict[Path, Path] = {}
    original = exporter.build_fused

    def build(folder: Path, _work: Path, **options: Any) -> Path:
        if folder not in built:
            built[folder] = original(folder, tmp_path_factory.mktemp("fused"), **options)
        return built[folder]

    python = WarmPython()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exporter, "build_fused", build)
        if hasattr(os, "fork"):
            patch.setattr(builder_process, "subprocess", python)
        yield
    python.close()
