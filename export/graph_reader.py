"""Reading an exported graph: which inputs it takes and how its KV cache is laid out, from the graph itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..protocol.errors import UnsupportedModelError
from ..protocol.manifest import GraphSpec, KVSpec

__all__ = ["GraphFacts", "load_graph", "read_graph"]

_LAYER = re.compile(r"\d+")
_ATTENTION = "GroupQueryAttention"
_DTYPES = {"FLOAT": "float32", "FLOAT16": "float16"}


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What a runtime must know about a graph; ``positions`` is the length of its rotary tables, if it has any."""

    graph: GraphSpec
    kv: KVSpec
    logits_size: int
    positions: int | None


def load_graph(path: Path) -> Any:
    """The onnx_ir model at ``path``, weights mapped and not yet read."""
    import onnx_ir as ir

    return ir.load(path)


def read_graph(model: Any) -> GraphFacts:
    """Read inputs, KV names, layers, heads, sizes and layout.

    Raises:
        UnsupportedModelError: the graph has inputs or caches that no drafter here can feed.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    known = [name for name in ("input_ids", "attention_mask", "position_ids") if name in inputs]
    past_key, past_value, layers = _templates([name for name in inputs if name not in known], "input")
    outputs = [value.name for value in graph.outputs]
    if "logits" not in outputs or "input_ids" not in known:
        raise UnsupportedModelError("the exported graph is no causal language model: it lacks input_ids or logits")
    present_key, present_value, present_layers = _templates([name for name in outputs if name != "logits"], "output")
    if present_layers != layers:
        raise UnsupportedModelError(f"the exported graph reads {layers} cache layers and writes {present_layers}")
    attention = [node for node in graph if node.op_type == _ATTENTION]
    heads, head_size = _cache_shape(inputs[past_key.format(layer=0)], attention)
    dtype = _DTYPES.get(inputs[past_key.format(layer=0)].dtype.name)
    if dtype != "float32":
        raise UnsupportedModelError(f"the exported graph keeps its cache as {dtype}; on CPUs fp32 is needed")
    kv = KVSpec(
        layout="shared_buffer" if len(attention) == layers else "concatenated",
        layers=layers,
        heads=heads,
        head_size=head_size,
        past_key=past_key,
        past_value=past_value,
        present_key=present_key,
        present_value=present_value,
    )
    logits = next(value for value in graph.outputs if value.name == "logits")
    size = logits.shape[2]
    if not isinstance(size, int):
        raise UnsupportedModelError("the exported graph does not say how wide its logits are")
    return GraphFacts(GraphSpec(inputs=known), kv, size, _rotary_positions(attention))


def _templates(names: list[str], what: str) -> tuple[str, str, int]:
    """Key and value name templates with ``{layer}``, and the number of layers, of the cache tensors in ``names``."""
    found: dict[str, set[int]] = {}
    for name in names:
        match = _LAYER.search(name)
        if match is None:
            raise UnsupportedModelError(f"the exported graph has an {what} {name!r} that is no part of a KV cache")
        template = name[: match.start()] + "{layer}" + name[match.end() :]
        found.setdefault(template, set()).add(int(match.group()))
    keys = [template for template in found if template.endswith("key")]
    values = [template for template in found if template.endswith("value")]
    if len(found) != 2 or len(keys) != 1 or len(values) != 1:
        raise UnsupportedModelError(
            f"the exported graph's {what}s are not one key and one value cache a layer; models with recurrent or "
            "convolution states cannot be drafts"
        )
    layers = len(found[keys[0]])
    if found[keys[0]] != set(range(layers)) or found[values[0]] != set(range(layers)):
        raise UnsupportedModelError(f"the exported graph's cache {what}s are not numbered 0 to {layers - 1}")
    return keys[0], values[0], layers


def _cache_shape(past: Any, attention: list[Any]) -> tuple[int, int]:
    """Heads and head size, from the cache's shape, or from the attention node where the shape is symbolic."""
    heads, head_size = past.shape[1], past.shape[3]
    if not isinstance(head_size, int) and attention:
        node = attention[0]
        queries, keys = node.attributes["num_heads"].value, node.attributes["kv_num_heads"].value
        packed = node.inputs[1] is None
        width = node.inputs[0].shape[2]
        if isinstance(width, int):
            head_size = width // (queries + 2 * keys if packed else queries)
    if not isinstance(heads, int) or not isinstance(head_size, int):
        raise UnsupportedModelError("the exported graph does not say the size of its KV cache")
    return heads, head_size


def _rotary_positions(attention: list[Any]) -> int | None:
    """Rows of the shortest cosine table: positions beyond it would read outside it."""
    rows = [
        int(node.inputs[7].shape[0])
        for node in attention
        if len(node.inputs) > 7 and node.inputs[7] is not None and isinstance(node.inputs[7].shape[0], int)
    ]
    return min(rows, default=None)
