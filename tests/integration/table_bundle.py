"""Draft bundles small enough to see through: a real ONNX graph that looks its logits up in a table.

The graph keeps the tokens themselves as its keys and values, and the row it looks up depends on the last two of them.
So its KV cache matters as a real one does: a rollback that is off by one shows in the logits.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Target
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.manifest import (
    BundleFile,
    GraphSpec,
    KVSpec,
    Manifest,
    QuantizationSpec,
    SourceSpec,
    VocabularySpec,
    file_sha256,
)
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

__all__ = ["one_hot_table", "right_table", "seal", "write_bundle", "wrong_table"]

CONTEXT_LENGTH = 4096


def right_table(target: TableTarget) -> NDArray[np.float32]:
    """The target's own logits for every pair of last tokens, [(vocabulary_size + 1) ** 2, vocabulary_size]."""
    size = target.info.vocabulary_size
    pairs = [(before, newest) for before in range(-1, size) for newest in range(-1, size)]
    return np.stack([target.logits_after([token for token in pair if token >= 0]) for pair in pairs])


def wrong_table(target: TableTarget) -> NDArray[np.float32]:
    """The target's logits mirrored: what it likes least comes first; <eos> is left where it is."""
    table = right_table(target)
    wrong = table.copy()
    wrong[:, 1:] = -table[:, 1:]
    return wrong


def one_hot_table(target: TableTarget) -> NDArray[np.float32]:
    """All probability on one token, which the target likes second best."""
    table = right_table(target)
    second = np.argsort(table, axis=1)[:, -2]
    one_hot = np.full_like(table, -1e4)
    one_hot[np.arange(len(table)), second] = 1e4
    return one_hot


def write_bundle(folder: Path, target: Target, table: NDArray[np.float32], *, name: str = "table") -> Path:
    """Write a bundle of ``target``'s vocabulary whose logits come from ``table``; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(_graph(table), str(folder / "model.onnx"))
    (folder / "tokenizer.json").write_text(target.tokenizer_json, encoding="utf-8")
    seal(folder, name=name, eos_ids=list(target.info.eos_ids))
    return folder


def seal(folder: Path, *, name: str = "table", eos_ids: list[int] | None = None) -> None:
    """Write the manifest for what lies in ``folder``, hashes included."""
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    manifest = Manifest(
        name=name,
        architecture="Table",
        builder="optimum",
        context_length=CONTEXT_LENGTH,
        source=SourceSpec(model=name),
        vocabulary=VocabularySpec(
            fingerprint=tokenizer.fingerprint.hex(),
            size=tokenizer.vocabulary_size,
            logits_size=tokenizer.vocabulary_size,
            eos_ids=eos_ids or [0],
        ),
        kv=KVSpec(layout="concatenated", layers=1, heads=1, head_size=1),
        graph=GraphSpec(inputs=["input_ids"]),
        quantization=QuantizationSpec(scheme="none"),
    )
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    files = {name: BundleFile(size=(folder / name).stat().st_size, sha256=file_sha256(folder / name)) for name in names}
    replace(manifest, files=files).save(folder)


def _graph(table: NDArray[np.float32]) -> onnx.ModelProto:
    """``input_ids`` [1, n] and the past tokens in, ``logits`` [1, n, vocabulary_size] and all tokens out."""
    past, present, ids = [1, 1, "past", 1], [1, 1, "all", 1], [1, "new"]
    size = table.shape[1]
    constants = {
        "table": table.astype(np.float32),
        "kv_shape": np.array([1, 1, -1, 1], np.int64),
        "flat": np.array([-1], np.int64),
        "none": np.array([-1], np.int64),
        "one": np.array(1, np.int64),
        "stride": np.array(size + 1, np.int64),
        "first": np.array([0], np.int64),
        "zero": np.array([0], np.int64),
    }
    nodes = [
        helper.make_node("Reshape", ["input_ids", "flat"], ["newest"]),
        helper.make_node("Cast", ["newest"], ["newest_float"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["newest_float", "kv_shape"], ["kv"]),
        helper.make_node("Concat", ["past_key_values.0.key", "kv"], ["present.0.key"], axis=2),
        helper.make_node("Concat", ["past_key_values.0.value", "kv"], ["present.0.value"], axis=2),
        # The token before each new one comes out of the cache, -1 where there is none.
        helper.make_node("Reshape", ["present.0.value", "flat"], ["held_float"]),
        helper.make_node("Cast", ["held_float"], ["held"], to=TensorProto.INT64),
        helper.make_node("Concat", ["none", "held"], ["shifted"], axis=0),
        helper.make_node("Shape", ["past_key_values.0.value"], ["past_length"], start=2, end=3),
        helper.make_node("Shape", ["newest"], ["new_length"]),
        helper.make_node("Add", ["past_length", "new_length"], ["end"]),
        helper.make_node("Slice", ["shifted", "past_length", "end", "first"], ["before"]),
        helper.make_node("Add", ["before", "one"], ["before_row"]),
        helper.make_node("Mul", ["before_row", "stride"], ["row_start"]),
        helper.make_node("Add", ["row_start", "newest"], ["row_short"]),
        helper.make_node("Add", ["row_short", "one"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["rows"], axis=0),
        helper.make_node("Unsqueeze", ["rows", "zero"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "table",
        [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ids),
            helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, past),
            helper.make_tensor_value_info("past_key_values.0.value", TensorProto.FLOAT, past),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "new", size]),
            helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, present),
            helper.make_tensor_value_info("present.0.value", TensorProto.FLOAT, present),
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    onnx.checker.check_model(model)
    return model
