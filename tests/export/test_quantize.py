"""The quantized layout, held against onnxruntime's own kernels and quantizer."""

from __future__ import annotations

import numpy as np
import pytest
from draftwire.export.quantize import BLOCK_SIZES, dequantize, quantize_rows
from draftwire.protocol.errors import InvalidParameterError, NonFiniteLogitsError
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [64, 72, 7])
def test_error_is_at_most_one_step(bits: int, columns: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(40, columns)).astype(np.float32)
    quantized = quantize_rows(matrix, bits=bits, block_size=32)

    restored = dequantize(quantized)

    steps = np.repeat(np.abs(quantized.scales), 32, axis=1)[:, :columns]
    assert restored.shape == matrix.shape
    assert (np.abs(restored - matrix) <= steps * 1.001).all()


def test_same_integers_as_the_quantizer_of_onnxruntime() -> None:
    state = pytest.importorskip("onnxruntime.capi._pybind_state")
    matrix = np.random.default_rng(1).normal(size=(48, 96)).astype(np.float32)  # [N, K]
    packed = np.zeros((48, 3, 16), dtype=np.uint8)
    scales = np.zeros((48, 3), dtype=np.float32)
    zero = np.zeros((48, 2), dtype=np.uint8)
    state.quantize_matmul_4bits(packed, np.ascontiguousarray(matrix.T), scales, zero, 32, 48, 96, True)

    quantized = quantize_rows(matrix, bits=4, block_size=32)

    np.testing.assert_allclose(quantized.scales, scales, rtol=1e-6)
    assert (quantized.data != packed).mean() < 0.01  # only ties may be rounded otherwise


@given(
    bits=st.sampled_from([4, 8]),
    block=st.sampled_from(BLOCK_SIZES),
    rows=st.integers(1, 5),
    columns=st.integers(1, 300),
    scale=st.floats(0, 1e4),
)
@settings(max_examples=40, deadline=None)
def test_shapes_and_largest_values(bits: int, block: int, rows: int, columns: int, scale: float) -> None:
    matrix = (np.random.default_rng(2).normal(size=(rows, columns)) * scale).astype(np.float32)
    quantized = quantize_rows(matrix, bits=bits, block_size=block)

    assert quantized.data.shape == (rows, -(-columns // block), block * bits // 8)
    furthest = np.abs(matrix).argmax(axis=1)
    found = dequantize(quantized)[np.arange(rows), furthest]
    np.testing.assert_allclose(found, matrix[np.arange(rows), furthest], rtol=1e-5, atol=1e-27)


def test_a_matrix_larger_than_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = np.random.default_rng(3).normal(size=(33, 64)).astype(np.float32)
    whole = quantize_rows(matrix, bits=4, block_size=32)
    monkeypatch.setattr("draftwire.export.quantize._PIECE", 256)

    pieces = quantize_rows(matrix, bits=4, block_size=32)

    np.testing.assert_array_equal(pieces.data, whole.data)


def test_bad_values_are_refused() -> None:
    matrix = np.ones((2, 32), dtype=np.float32)
    with pytest.raises(InvalidParameterError, match="block_size"):
        quantize_rows(matrix, bits=4, block_size=48)
    matrix[1, 3] = np.nan
    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        quantize_rows(matrix, bits=4, block_size=32)
