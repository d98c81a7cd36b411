"""The two ends of a language model graph: the input embedding and the output head, and storing them once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .constant_matrix import ConstantMatrix, constant_matrix

__all__ = ["Embedding", "find_embedding", "find_head", "share_float_embedding", "tied"]

_PASSING = {"Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """The lookup ``node``, a Gather of rows of ``weight`` [vocabulary, hidden] by ``input_ids``."""

    node: Any
    weight: ConstantMatrix


def find_embedding(graph: Any, *, ids: str = "input_ids") -> Embedding | None:
    """The Gather that turns token ids into vectors, or None where the graph has none that is understood."""
    for node in graph:
        if node.op_type == "Gather" and node.domain in ("", "ai.onnx") and _comes_from(node.inputs[1], ids):
            weight = constant_matrix(node.inputs[0])
            if weight is not None:
                return Embedding(node, weight)
    return None


def find_head(graph: Any, *, logits: str = "logits") -> Any | None:
    """The MatMul (or Gemm) with constant weights nearest before the logits, or None."""
    value = next(output for output in graph.outputs if output.name == logits)
    for _ in range(16):  # a bias, a scale, a soft cap and a reshape may follow the head
        node = value.producer()
        if node is None:
            return None
        if node.op_type in ("MatMul", "Gemm") and constant_matrix(node.inputs[1]) is not None:
            return node
        value = node.inputs[0]
        if value is None:
            return None
    return None


def tied(embedding: Embedding, head: ConstantMatrix) -> bool:
    """Whether the head's weight [hidden, vocabulary] is the embedding transposed, by identity or by value."""
    if head.shape != embedding.weight.shape[::-1]:
        return False
    if head.root is embedding.weight.root:
        return head.transposed != embedding.weight.transposed
    return bool(np.array_equal(head.array().T, embedding.weight.array()))


def share_float_embedding(model: Any) -> bool:
    """Make head and embedding of an fp32 graph read one initializer where they are equal.

    Builders disagree about this: some store the transposed copy beside the original. Returns whether the graph
    stores one weight for both now.
    """
    import onnx_ir as ir

    embedding, head = find_embedding(model.graph), find_head(model.graph)
    if embedding is None or head is None:
        return False
    weight = constant_matrix(head.inputs[1])
    if weight is None or not tied(embedding, weight):
        return False
    if weight.root is embedding.weight.root:
        return True
    source = embedding.node.inputs[0]
    transposed = ir.node("Transpose", [source], {"perm": [1, 0]}, name="shared_embedding/Transpose")
    model.graph.insert_before(head, transposed)
    head.replace_input_with(1, transposed.outputs[0])
    return True


def _comes_from(value: Any, name: str) -> bool:
    """Whether ``value`` is the graph input ``name``, but for reshapes and casts."""
    while value is not None:
        if value.name == name:
            return True
        node = value.producer()
        if node is None or node.op_type not in _PASSING:
            return False
        value = node.inputs[0]
    return False
