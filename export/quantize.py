"""Round-to-nearest, symmetric, block-wise quantization of matrices, in the layout of onnxruntime's MatMulNBits.

onnxruntime brings a quantizer, and this is not it: here one quantized weight serves both embedding and head where the
model ties them, for the graphs of every builder and for both bit widths, which that one does not do. The tests check
this one against onnxruntime's own kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import InvalidParameterError, NonFiniteLogitsError

__all__ = ["BLOCK_SIZES", "DEFAULT_BLOCK_SIZE", "QuantizedMatrix", "Scheme", "bits_of", "dequantize", "quantize_rows"]

Scheme = Literal["int4", "int8", "none"]
BLOCK_SIZES = (16, 32, 64, 128, 256)
DEFAULT_BLOCK_SIZE: dict[Scheme, int] = {"int4": 32, "int8": 64}
_PIECE = 1 << 22  # values quantized at a time, so that the working memory is small beside the model

_SMALLEST_SCALE = 1e-30  # a block this close to zero is zero; the inverse of its scale would overflow


@dataclass(frozen=True, slots=True)
class QuantizedMatrix:
    """A matrix [rows, columns] as ``bits``-bit integers with one scale a block of ``block_size`` columns.

    ``data``: uint8 [rows, blocks, block_size * bits / 8], the zero point being 2**(bits - 1); in four bits the first
    value is the low nibble. ``scales``: float32 [rows, blocks]. The last block is padded with zeros.
    """

    data: NDArray[np.uint8]
    scales: NDArray[np.float32]
    columns: int
    bits: int
    block_size: int

    @property
    def padded_columns(self) -> int:
        blocks: int = self.scales.shape[1]
        return blocks * self.block_size


def bits_of(scheme: Scheme) -> int:
    """Bits a weight; for the two integer schemes."""
    return 4 if scheme == "int4" else 8


def quantize_rows(matrix: NDArray[np.float32], *, bits: int, block_size: int) -> QuantizedMatrix:
    """Quantize ``matrix`` [rows, columns] along its columns.

    The scale of a block maps its value of largest magnitude to the end of the range that reaches furthest
    (-8 of -8..7), sign included, so that no value is clipped by more than half a step and the range is used whole.

    Raises:
        InvalidParameterError: a block size that the kernels do not take.
        NonFiniteLogitsError: a weight is NaN or infinite.
    """
    if block_size not in BLOCK_SIZES:
        raise InvalidParameterError("block_size", f"must be one of {', '.join(map(str, BLOCK_SIZES))}")
    rows, columns = matrix.shape
    blocks = -(-columns // block_size)
    data = np.empty((rows, blocks, block_size * bits // 8), dtype=np.uint8)
    scales = np.empty((rows, blocks), dtype=np.float32)
    step = max(1, _PIECE // (blocks * block_size))
    for first in range(0, rows, step):
        piece = slice(first, min(first + step, rows))
        data[piece], scales[piece] = _quantize_piece(matrix[piece], blocks, bits=bits, block_size=block_size)
    return QuantizedMatrix(data, scales, columns, bits, block_size)


def dequantize(quantized: QuantizedMatrix) -> NDArray[np.float32]:
    """The matrix [rows, columns] that the kernels compute with."""
    data = quantized.data
    if quantized.bits == 4:
        data = np.stack([data & 0xF, data >> 4], axis=-1).reshape(*data.shape[:2], quantized.block_size)
    values = (data.astype(np.float32) - 2 ** (quantized.bits - 1)) * quantized.scales[..., None]
    flat: NDArray[np.float32] = values.reshape(len(values), -1)[:, : quantized.columns]
    return flat


def _quantize_piece(
    piece: NDArray[np.float32], blocks: int, *, bits: int, block_size: int
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    half = 2 ** (bits - 1)
    padded = np.zeros((len(piece), blocks * block_size), dtype=np.float32)
    padded[:, : piece.shape[1]] = piece
    values = padded.reshape(len(piece), blocks, block_size)  # [rows, blocks, block_size]
    if not np.isfinite(values).all():
        raise NonFiniteLogitsError("the model has NaN or infinite weights; it cannot be exported")
    furthest = np.take_along_axis(values, np.abs(values).argmax(axis=-1)[..., None], axis=-1)  # [rows, blocks, 1]
    scales = (furthest / -half).astype(np.float32)
    scales[np.abs(scales) < _SMALLEST_SCALE] = 0
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)
    steps = np.clip(np.rint(values * inverse) + half, 0, 2 * half - 1).astype(np.uint8)
    if bits == 4:
        steps = steps[..., 0::2] | (steps[..., 1::2] << 4)
    return steps, scales[..., 0]
