"""Graph surgery: what is quantized, what is shared, and that the kernels compute what the arrays say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.export.bundle_writer import save_graph
from draftwire.export.graph_quantizer import quantize_graph
from draftwire.export.quantize import Scheme

ir = pytest.importorskip("onnx_ir")
onnxruntime = pytest.importorskip("onnxruntime")

VOCABULARY, HIDDEN = 80, 72  # 72 is no multiple of a block, so the last block is padded


def tiny_graph(*, tied: str) -> Any:
    """``ids -> Gather -> MatMul``, the head being the embedding's own node, an equal copy, or another weight."""
    import onnx
    from onnx import helper, numpy_helper

    table = np.random.default_rng(0).normal(size=(VOCABULARY, HIDDEN)).astype(np.float32)
    initializers = [numpy_helper.from_array(table, "table")]
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["x"], "embed")]
    if tied == "transpose":
        nodes.append(helper.make_node("Transpose", ["table"], ["head"], "flip", perm=[1, 0]))
    else:
        head = table.T if tied == "copy" else np.random.default_rng(1).normal(size=(HIDDEN, VOCABULARY))
        initializers.append(numpy_helper.from_array(np.ascontiguousarray(head, dtype=np.float32), "head"))
    nodes.append(helper.make_node("MatMul", ["x", "head"], ["logits"], "lm_head"))
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["b", "s"])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["b", "s", VOCABULARY])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return ir.from_proto(model)


def run(model: Any, folder: Path) -> tuple[np.ndarray[Any, Any], int]:
    path = save_graph(model, folder)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    logits = session.run(["logits"], {"input_ids": np.arange(VOCABULARY, dtype=np.int64)[None]})[0][0]
    return logits, (folder / "model.onnx.data").stat().st_size


@pytest.mark.parametrize("tied", ["transpose", "copy", "different"])
@pytest.mark.parametrize(("scheme", "correlation"), [("int4", 0.98), ("int8", 0.9995), ("none", 0.999999)])
def test_logits_stay_close_and_tied_weights_are_stored_once(
    tied: str, scheme: Scheme, correlation: float, tmp_path: Path
) -> None:
    wanted, _ = run(tiny_graph(tied=tied), tmp_path / "fp32")
    model = tiny_graph(tied=tied)

    specification = quantize_graph(model, scheme, block_size=None if scheme == "none" else 32)
    found, size = run(model, tmp_path / "quantized")

    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > correlation
    assert specification.shared_embeddings == (tied != "different")
    blocks = 3  # of 32 columns, for 72
    one = {"int4": VOCABULARY * blocks * (16 + 4), "int8": VOCABULARY * blocks * (32 + 4), "none": table_bytes()}[
        scheme
    ]
    copies = 2 if tied == "different" else 1
    assert size <= copies * one * 1.02
    assert ("stored once" in specification.notes[0]) == (tied != "different")


def table_bytes() -> int:
    return VOCABULARY * HIDDEN * 4
