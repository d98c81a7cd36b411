from __future__ import annotations

import pytest
import torch
from draftwire.cloud_verifier.targets.ragged_attention import dense_attention


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_dense_attention_is_attention(width: int, softcap: float | None, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(width)
    slots, heads, groups, length, room = 3, 2, 3, 50, 64
    query = torch.randn(slots, heads, width, groups, 16).to(dtype)
    keys = torch.randn(slots, heads, room, 16).to(dtype)[:, :, :length]
    values = torch.randn(slots, heads, room, 12).to(dtype)[:, :, :length]
    allowed = torch.rand(slots, 1, width, 1, length) < 0.5
    allowed[..., 0] = True
    mask = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    actual = dense_attention(query, keys, values, mask, scaling=0.3, softcap=softcap)

    scores = torch.einsum("shwgd,shld->shwgl", query.double(), keys.double()) * 0.3
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    expected = torch.einsum("shwgl,shld->shwgd", torch.softmax(scores + mask, -1), values.double())
    assert actual.dtype == dtype
    assert (actual.double() - expected).abs().max() < tolerance
