"""Attention over many streams' KV caches at once, plugged into transformers as an attention implementation.

Transformers computes queries, keys and values for one packed row of all streams' tokens and calls
:func:`_forward`; a :class:`RaggedAttention`, made active for the step, writes keys and values to the streams' slots
and attends run by run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface

from .ragged_batch import RaggedBatch, SlotRun
from .slot_pool import LayerShape

__all__ = ["ATTENTION_NAME", "AttentionStep", "LayerProbe", "RaggedAttention", "active", "dense_attention"]

ATTENTION_NAME = "draftwire_ragged"

_DENSE_QUERIES = 128
"""Queries at a time where soft-capping rules the fused kernel out: bounds the memory for scores."""


class AttentionStep(Protocol):
    """What stands behind the attention layers during one forward pass."""

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        softcap: float | None,
        mask: torch.Tensor | None,
        window: int | None,
        sinks: bool,
    ) -> torch.Tensor:
        """Attend from query [heads, tokens, key_dim]; returns [tokens, heads, value_dim]."""
        ...

    def mask(self, local_size: int | None) -> torch.Tensor | None:
        """What transformers passes to the layers as their mask."""
        ...


_active: ContextVar[AttentionStep] = ContextVar("draftwire_attention_step")


@contextmanager
def active(step: AttentionStep) -> Iterator[None]:
    """Serve the attention layers of models run in this context by ``step``."""
    token = _active.set(step)
    try:
        yield
    finally:
        _active.reset(token)


def _forward(
    module: torch.nn.Module,
    query: torch.Tensor,  # [1, heads, tokens, key_dim]
    key: torch.Tensor,  # [1, kv_heads, tokens, key_dim]
    value: torch.Tensor,  # [1, kv_heads, tokens, value_dim]
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    sliding_window: int | None = None,
    s_aux: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    output = _active.get().attend(
        module,
        query[0],
        key[0],
        value[0],
        scaling=float(query.shape[-1]) ** -0.5 if scaling is None else float(scaling),
        softcap=softcap,
        mask=attention_mask,
        window=sliding_window,
        sinks=s_aux is not None,
    )
    return output[None], None


def _mask(*_: Any, local_size: int | None = None, **__: Any) -> torch.Tensor | None:
    return _active.get().mask(local_size)


AttentionInterface.register(ATTENTION_NAME, _forward)
AttentionMaskInterface.register(ATTENTION_NAME, _mask)


class LayerProbe:
    """Runs a model on a single token to learn what its attention layers are.

    One token attends to nothing but itself, so the values are the answer. The mask handed to each layer carries
    the window that transformers would have masked it with: that, and no attribute, is what the layer does.
    """

    def __init__(self) -> None:
        self.layers: dict[torch.nn.Module, LayerShape] = {}
        self.repeated = False
        self.sinks = False
        self.dtype: torch.dtype | None = None

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,  # noqa: ARG002
        softcap: float | None,  # noqa: ARG002
        mask: torch.Tensor | None,
        window: int | None,
        sinks: bool,
    ) -> torch.Tensor:
        """See :meth:`AttentionStep.attend`; records the layer."""
        self.repeated |= module in self.layers
        self.sinks |= sinks
        self.dtype = key.dtype
        if mask is not None:
            window = int(mask.flatten()[0])
        self.layers[module] = LayerShape(key.shape[0], key.shape[-1], value.shape[-1], window or None)
        return value.transpose(0, 1).repeat_interleave(query.shape[0] // value.shape[0], dim=1)

    def mask(self, local_size: int | None) -> torch.Tensor:
        """See :meth:`AttentionStep.mask`; the window's size, 0 for none."""
        return torch.full((1, 1, 1, 1), local_size or 0)


class RaggedAttention:
    """Attention for one step's batch.

    ``layers`` numbers the attention modules as the cache does and gives their shapes.
    """

    def __init__(self, batch: RaggedBatch, layers: Mapping[torch.nn.Module, tuple[int, LayerShape]]) -> None:
        self._batch = batch
        self._layers = layers

    def mask(self, local_size: int | None) -> None:  # noqa: ARG002
        """See :meth:`AttentionStep.mask`; each run has its own instead."""
        return

    def attend(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float,
        softcap: float | None,
        mask: torch.Tensor | None,  # noqa: ARG002
        window: int | None,  # noqa: ARG002
        sinks: bool,  # noqa: ARG002
    ) -> torch.Tensor:
        """See :meth:`AttentionStep.attend`."""
        layer, shape = self._layers[module]
        self._write(layer, key, value)
        queries = query.transpose(0, 1)  # [tokens, heads, key_dim]
        runs = self._batch.runs
        if runs[0].scatter is None:
            return _attend_run(runs[0], queries, layer, shape, scaling, softcap)
        output = queries.new_empty((*queries.shape[:2], shape.value_dim))
        for run, scatter in ((run, run.scatter) for run in runs if run.scatter is not None):
            gathered = queries.index_select(0, scatter.gather)
            result = _attend_run(run, gathered, layer, shape, scaling, softcap)
            output.index_copy_(0, scatter.tokens, result.index_select(0, scatter.valid))
        return output

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        for write in self._batch.writes:
            for tensor, new in ((write.pool.keys[layer], key), (write.pool.values[layer], value)):
                chosen = new if write.tokens is None else new.index_select(1, write.tokens)
                heads, _, width = chosen.shape
                tensor.view(-1, width).index_copy_(0, write.rows(heads), chosen.reshape(-1, width))


def _attend_run(
    run: SlotRun, queries: torch.Tensor, layer: int, shape: LayerShape, scaling: float, softcap: float | None
) -> torch.Tensor:
    """Queries [slots * width, heads, key_dim] of one run; returns [slots * width, heads, value_dim]."""
    heads, width = shape.kv_heads, run.width
    groups = queries.shape[1] // heads
    last = run.first + run.slots
    if run.long and softcap is None:
        return _attend_prompt(run, queries, layer, shape, scaling)
    window = run.window(shape.window)
    keys = run.pool.keys[layer][run.first : last, :, window.low : window.high]
    values = run.pool.values[layer][run.first : last, :, window.low : window.high]
    query = queries.reshape(run.slots, width, heads, groups, -1).transpose(1, 2)  # [slots, heads, width, groups, d]
    pieces = [
        dense_attention(
            query[:, :, at : at + _DENSE_QUERIES],
            keys,
            values,
            window.mask[:, :, at : at + _DENSE_QUERIES],
            scaling=scaling,
            softcap=softcap,
        )
        for at in range(0, width, _DENSE_QUERIES)
    ]
    output = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
    return output.transpose(1, 2).reshape(run.slots * width, heads * groups, -1)


def _attend_prompt(run: SlotRun, queries: torch.Tensor, layer: int, shape: LayerShape, scaling: float) -> torch.Tensor:
    """One long block, by torch's fused kernel: nothing of size tokens x tokens x heads is ever held."""
    heads, slot = shape.kv_heads, run.first
    groups = queries.shape[1] // heads
    length = int(run.positions[0, -1]) + 1
    causal = run.causal_from_zero and (shape.window is None or length <= shape.window)
    window = None if causal else run.window(shape.window)
    low, high = (window.low, window.high) if window else (0, length)
    query = queries.reshape(run.width, heads, groups, -1).permute(2, 1, 0, 3)  # [groups, heads, tokens, key_dim]
    keys = run.pool.keys[layer][slot, :, low:high].expand(groups, -1, -1, -1)  # shared, not copied
    values = run.pool.values[layer][slot, :, low:high].expand(groups, -1, -1, -1)
    mask = window.mask[:, :, :, 0].to(query.dtype) if window else None  # [1, 1, tokens, high - low]
    output = functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=causal, scale=scaling
    )
    return output.permute(2, 1, 0, 3).reshape(run.width, heads * groups, -1)


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    *,
    scaling: float,
    softcap: float | None,
) -> torch.Tensor:
    """Plain attention, several queries and query heads to each KV head, keys and values read where they lie.

    Args:
        query: [slots, heads, width, groups, key_dim].
        keys: [slots, heads, length, key_dim], a strided view.
        values: [slots, heads, length, value_dim], a strided view.
        mask: float32 [slots, 1, width, 1, length], added to the scores.
        scaling: multiplies the scores.
        softcap: scores become ``softcap * tanh(score / softcap)``; None for none.

    Returns:
        [slots, heads, width, groups, value_dim]; softmax in float32.
    """
    slots, heads, width, groups, _ = query.shape
    length = keys.shape[2]
    flat_query = query.reshape(slots * heads, width * groups, -1)
    flat_keys = keys.reshape(slots * heads, length, -1)  # a view: slots and heads are evenly spaced
    flat_values = values.reshape(slots * heads, length, -1)
    if _keys_first(flat_query):
        scores = torch.bmm(flat_keys, flat_query.transpose(1, 2)).transpose(1, 2)
    else:
        scores = torch.bmm(flat_query, flat_keys.transpose(1, 2))
    scores = scores.view(slots, heads, width, groups, length)
    if softcap is not None:
        scores = torch.tanh(scores.float() * (scaling / softcap))
        scaling = softcap
    probabilities = torch.softmax(torch.add(mask, scores, alpha=scaling), dim=-1).to(values.dtype)
    output = torch.bmm(probabilities.view(slots * heads, width * groups, length), flat_values)
    return output.view(slots, heads, width, groups, -1)


def _keys_first(query: torch.Tensor) -> bool:
    """Whether keys x queries is quicker than queries x keys.

    On CPUs a half-precision product repacks its second matrix at each call, which had better be the small one
    (2.7 times quicker at 256 keys); in float32 it pays for up to four queries.
    """
    return query.device.type == "cpu" and (query.dtype != torch.float32 or query.shape[1] <= 4)
