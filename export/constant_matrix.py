"""Two-dimensional constants of an ONNX graph, seen through the transposes that exporters put before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ConstantMatrix", "constant_matrix"]


@dataclass(frozen=True, slots=True)
class ConstantMatrix:
    """A float matrix as a node reads it: the initializer ``root``, ``transposed`` or not."""

    root: Any
    transposed: bool

    @property
    def shape(self) -> tuple[int, int]:
        rows, columns = (int(size) for size in self.root.const_value.shape)
        return (columns, rows) if self.transposed else (rows, columns)

    @property
    def key(self) -> tuple[str, bool]:
        """Equal for two readings of the same weight the same way."""
        return str(self.root.name), self.transposed

    def array(self) -> NDArray[np.float32]:
        """The values in fp32, a view of the mapped file where that is possible."""
        values: NDArray[np.float32] = self.root.const_value.numpy().astype(np.float32, copy=False)
        return values.T if self.transposed else values


def constant_matrix(value: Any) -> ConstantMatrix | None:
    """``value`` as a constant float matrix, or None where it is computed, of another rank or of another type."""
    transposed = False
    while value is not None and value.const_value is None:
        node = value.producer()
        if node is None or node.op_type not in ("Transpose", "Identity"):
            return None
        if node.op_type == "Transpose":
            permutation = node.attributes.get("perm")
            if permutation is not None and list(permutation.value) != [1, 0]:
                return None
            transposed = not transposed
        value = node.inputs[0]
    if value is None or len(value.const_value.shape) != 2 or not value.const_value.dtype.is_floating_point():
        return None
    return ConstantMatrix(value, transposed)
