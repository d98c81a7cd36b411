from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from draftwire.cloud_verifier.targets import ragged_attention
from draftwire.cloud_verifier.targets.ragged_attention import RaggedAttention
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import UnsupportedModelError

MakeModel = Callable[..., str]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
def test_attention_that_is_slightly_wrong_is_refused(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    right = ragged_attention.dense_attention

    def wrong(*tensors: torch.Tensor, scaling: float, softcap: float | None) -> torch.Tensor:
        return right(*tensors, scaling=1.05 * scaling, softcap=softcap)

    monkeypatch.setattr(ragged_attention, "dense_attention", wrong)
    with pytest.raises(UnsupportedModelError, match="differs from plain transformers"):
        TransformersTarget.load(make_model(kind))


def test_a_cache_that_forgets_is_refused(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(_: Any, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Write nothing."""

    monkeypatch.setattr(RaggedAttention, "_write", forget)
    with pytest.raises(UnsupportedModelError, match="differs from plain transformers"):
        TransformersTarget.load(make_model("llama"))


def test_the_check_leaves_no_stream_behind(make_model: MakeModel) -> None:
    target = TransformersTarget.load(make_model("llama"))
    assert target.kv_bytes == 0
    for stream in (1, 2):
        target.open(stream, 8)
