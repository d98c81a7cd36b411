"""Tiny random models of every architecture, saved once a session, and what plain transformers makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 96

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # large enough for attention to matter
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_GATED = _SHAPE | {"intermediate_size": 48, "num_key_value_heads": 2}
_SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GATED),
    "qwen2": ("qwen2", _GATED),
    "qwen3": ("qwen3", _GATED | {"head_dim": 16}),
    "gemma2": ("gemma2", _GATED | _SLIDING | {"head_dim": 8, "attn_logit_softcapping": 2.0}),
    "gemma3": ("gemma3_text", _GATED | _SLIDING | {"head_dim": 16}),
    "phi3": ("phi3", _GATED),
    "phi3-sliding": ("phi3", _GATED | {"sliding_window": 8}),
    "mistral": ("mistral", _GATED | {"sliding_window": 8}),
    "gpt2": ("gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024, "n_inner": 48} | _SHAPE),
    "gpt-neox": ("gpt_neox", _SHAPE | {"intermediate_size": 48, "rotary_pct": 0.5}),
    "mixtral": ("mixtral", _GATED | {"num_local_experts": 4}),
}

MakeModel = Callable[..., str]
PlainLogits = Callable[[str, Sequence[int]], NDArray[np.float32]]


def _save_tokenizer(folder: Path, size: int) -> None:
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {f"w{token}": token for token in range(3, size)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(folder)


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """``make_model(kind, tokenizer_size=..., **config)`` saves a model and returns its folder; equal calls share it."""
    made: dict[str, str] = {}

    def make(kind: str, *, tokenizer_size: int = VOCABULARY, **changes: Any) -> str:
        key = repr((kind, tokenizer_size, sorted(changes.items())))
        if key not in made:
            model_type, options = KINDS.get(kind, (kind, {}))
            folder = tmp_path_factory.mktemp(kind)
            torch.manual_seed(0)
            config = AutoConfig.for_model(model_type, **(options | changes))
            AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
            _save_tokenizer(folder, tokenizer_size)
            made[key] = str(folder)
        return made[key]

    return make


@pytest.fixture(scope="session")
def plain_logits() -> PlainLogits:
    """``plain_logits(folder, tokens)``: [tokens, logits_size] by transformers' own forward pass, in float32."""
    models_: dict[str, Any] = {}

    def run(folder: str, tokens: Sequence[int]) -> NDArray[np.float32]:
        if folder not in models_:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
            models_[folder] = model.eval()
        with torch.inference_mode():
            logits = models_[folder](input_ids=torch.tensor([list(tokens)])).logits[0].numpy()
        assert np.isfinite(logits).all()
        return logits

    return run


@pytest.fixture(params=KINDS)
def any_model(request: pytest.FixtureRequest, make_model: MakeModel) -> str:
    """The folder of a tiny model of each architecture in turn."""
    return make_model(request.param)
