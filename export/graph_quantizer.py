"""Quantizing an fp32 graph: every constant MatMul becomes a MatMulNBits, the embedding a GatherBlockQuantized.

Where embedding and head are tied, both read the head's quantized weight, so that it is stored once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.manifest import QuantizationSpec
from .constant_matrix import ConstantMatrix, constant_matrix
from .embedding import Embedding, find_embedding, find_head, share_float_embedding, tied
from .quantize import DEFAULT_BLOCK_SIZE, QuantizedMatrix, Scheme, bits_of, quantize_rows

__all__ = ["quantize_graph"]

_MICROSOFT = "com.microsoft"
_INT8_ACTIVATIONS = 4  # MatMulNBits' accuracy_level: activations in 8 bits a block, products in integers


def quantize_graph(model: Any, scheme: Scheme, *, block_size: int | None = None) -> QuantizationSpec:
    """Quantize an onnx_ir model in place and say what was done.

    Raises:
        InvalidParameterError: a block size the kernels do not take.
        NonFiniteLogitsError: a weight is NaN or infinite.
    """
    if scheme == "none":
        shared = share_float_embedding(model)
        _remove_unused(model)
        return QuantizationSpec(scheme="none", shared_embeddings=shared, notes=_notes(shared, "fp32"))
    size = block_size or DEFAULT_BLOCK_SIZE[scheme]
    shared = _Pass(model, bits=bits_of(scheme), block_size=size).run()
    _remove_unused(model)
    return QuantizationSpec(
        scheme=scheme, block_size=size, shared_embeddings=shared, notes=_notes(shared, f"{scheme} block {size}")
    )


def _notes(shared: bool, stored: str) -> list[str]:
    once = f"input embedding and output head are one weight, stored once ({stored})"
    twice = f"input embedding and output head are different weights in this model; both are stored ({stored})"
    kept = "norms, biases and rotary or position tables are kept in fp32"
    return [once if shared else twice, kept]


def _remove_unused(model: Any) -> None:
    import onnx_ir.passes.common as passes

    passes.RemoveUnusedNodesPass()(model)


class _Pass:
    """One walk over one graph; quantized weights are kept by name, so that a weight used twice is stored once."""

    def __init__(self, model: Any, *, bits: int, block_size: int) -> None:
        import onnx_ir as ir

        self._ir = ir
        self._graph = model.graph
        self._bits = bits
        self._block_size = block_size
        self._stored: dict[tuple[str, bool], tuple[Any, Any, QuantizedMatrix]] = {}
        model.graph.opset_imports.setdefault(_MICROSOFT, 1)

    def run(self) -> bool:
        """Returns whether embedding and head share one weight."""
        embedding, head = find_embedding(self._graph), find_head(self._graph)
        head_weight = _weight_of(head) if head is not None else None
        shared = embedding is not None and head_weight is not None and tied(embedding, head_weight)
        if embedding is not None:
            rows = head_weight if shared and head_weight is not None else _flipped(embedding.weight)
            self._replace_embedding(embedding, rows)
        for node in list(self._graph):
            if node.op_type in ("MatMul", "Gemm") and node.domain in ("", "ai.onnx"):
                self._replace_matmul(node)
        return shared

    def _replace_matmul(self, node: Any) -> None:
        weight = _weight_of(node)
        if weight is None:
            return
        data, scales, quantized = self._store(weight)
        name = node.name or data.name
        product = self._ir.node(
            "MatMulNBits",
            [node.inputs[0], data, scales],
            {
                "K": weight.shape[0],
                "N": weight.shape[1],
                "bits": self._bits,
                "block_size": self._block_size,
                "accuracy_level": _INT8_ACTIVATIONS,
            },
            domain=_MICROSOFT,
            name=f"{name}_Q{quantized.bits}",
        )
        nodes = [product]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if bias is not None:
            nodes.append(self._ir.node("Add", [product.outputs[0], bias], name=f"{name}_bias"))
        self._replace(node, nodes)

    def _replace_embedding(self, embedding: Embedding, head: ConstantMatrix) -> None:
        """Look rows up in the quantized weight that ``head`` [hidden, vocabulary] names."""
        data, scales, quantized = self._store(head)
        rows, blocks = quantized.scales.shape
        flat = np.array([rows, blocks * quantized.data.shape[2]], dtype=np.int64)
        reshape = self._ir.node("Reshape", [data, self._constant("shape", flat)], name="shared_embedding/Reshape")
        lookup = self._ir.node(
            "GatherBlockQuantized",
            [reshape.outputs[0], embedding.node.inputs[1], scales],
            {"bits": self._bits, "block_size": self._block_size, "gather_axis": 0, "quantize_axis": 1},
            domain=_MICROSOFT,
            name="shared_embedding/GatherBlockQuantized",
        )
        nodes = [reshape, lookup]
        if quantized.padded_columns != quantized.columns:  # the last block was padded: cut the padding off
            bounds = [("start", [0]), ("end", [quantized.columns]), ("axis", [-1])]
            inputs = [self._constant(name, np.array(value, dtype=np.int64)) for name, value in bounds]
            nodes.append(self._ir.node("Slice", [lookup.outputs[0], *inputs], name="shared_embedding/Slice"))
        self._replace(embedding.node, nodes)

    def _store(self, weight: ConstantMatrix) -> tuple[Any, Any, QuantizedMatrix]:
        """Initializers for the quantized rows of ``weight`` [K, N], that is for N rows of K columns."""
        if weight.key not in self._stored:
            quantized = quantize_rows(weight.array().T, bits=self._bits, block_size=self._block_size)
            base = f"{weight.root.name}{'_T' if weight.transposed else ''}_Q{self._bits}G{self._block_size}"
            data, scales = self._initializer(base, quantized.data), self._initializer(f"{base}_scale", quantized.scales)
            self._stored[weight.key] = data, scales, quantized
        return self._stored[weight.key]

    def _constant(self, name: str, array: NDArray[Any]) -> Any:
        return self._initializer(f"shared_embedding/{name}", array)

    def _initializer(self, name: str, array: NDArray[Any]) -> Any:
        tensor = self._ir.tensor(array, name=name)
        value = self._ir.Value(
            name=name, shape=self._ir.Shape(array.shape), type=self._ir.TensorType(tensor.dtype), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value

    def _replace(self, old: Any, new: list[Any]) -> None:
        self._ir.convenience.replace_nodes_and_values(
            self._graph, old, [old], new, list(old.outputs), list(new[-1].outputs)
        )


def _weight_of(node: Any) -> ConstantMatrix | None:
    """The constant weight [K, N] of a MatMul, or of a Gemm that is no more than a MatMul with a bias."""
    weight = constant_matrix(node.inputs[1])
    if weight is None or node.op_type == "MatMul":
        return weight
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA", 0):
        return None
    return _flipped(weight) if attributes.get("transB", 0) else weight


def _flipped(weight: ConstantMatrix) -> ConstantMatrix:
    return ConstantMatrix(weight.root, not weight.transposed)
