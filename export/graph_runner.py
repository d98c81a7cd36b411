"""Running an exported graph on onnxruntime, for the checks at the end of an export. The only importer of it here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import ExportError
from ..protocol.manifest import GraphSpec, KVSpec
from .dependencies import require
from .source import one_line

__all__ = ["GraphRunner"]


class GraphRunner:
    """One row of tokens through one graph, with a KV cache that can be cut back.

    Both cache layouts behave the same here: :meth:`feed` appends tokens, :meth:`rollback` drops them.

    Raises:
        ExportError: onnxruntime cannot load or run the graph.
    """

    def __init__(self, model: Path, *, graph: GraphSpec, kv: KVSpec, capacity: int, threads: int = 1) -> None:
        self._ort: Any = require("onnxruntime")
        self._graph = graph
        self._kv = kv
        self._capacity = capacity
        options = self._ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session = self._ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ExportError(f"onnxruntime cannot load the exported graph: {one_line(error)}") from error
        self._past = [
            template.format(layer=layer) for layer in range(kv.layers) for template in (kv.past_key, kv.past_value)
        ]
        self._present = [
            template.format(layer=layer)
            for layer in range(kv.layers)
            for template in (kv.present_key, kv.present_value)
        ]
        self._caches: list[Any] = []
        self.length = 0
        self.reset()

    def reset(self) -> None:
        """Forget every token."""
        rows = self._capacity if self._kv.layout == "shared_buffer" else 0
        shape = (1, self._kv.heads, rows, self._kv.head_size)
        self._caches = [self._value(np.zeros(shape, dtype=np.float32)) for _ in self._past]
        self.length = 0

    def rollback(self, length: int) -> None:
        """Keep the first ``length`` tokens: a number in a shared buffer, a slice of concatenated caches."""
        if self._kv.layout == "concatenated" and length < self.length:
            self._caches = [self._value(np.ascontiguousarray(cache.numpy()[:, :, :length])) for cache in self._caches]
        self.length = length

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append ``tokens``; logits [len(tokens), logits_size] after each of them."""
        count, total = len(tokens), self.length + len(tokens)
        feeds = {
            "input_ids": np.array([tokens], dtype=np.int64),
            "attention_mask": np.ones((1, total), dtype=np.int64),
            "position_ids": np.arange(self.length, total, dtype=np.int64)[None],
        }
        binding = self._session.io_binding()
        for name in self._graph.inputs:
            binding.bind_ortvalue_input(name, self._value(feeds[name]))
        for name, cache in zip(self._past, self._caches, strict=True):
            binding.bind_ortvalue_input(name, cache)
        binding.bind_output(self._graph.logits)
        for name, cache in zip(self._present, self._caches, strict=True):
            if self._kv.layout == "shared_buffer":
                binding.bind_ortvalue_output(name, cache)
            else:
                binding.bind_output(name)
        self._run(lambda: self._session.run_with_iobinding(binding))
        logits, *presents = binding.get_outputs()
        if self._kv.layout == "concatenated":
            self._caches = presents
        self.length = total
        result: NDArray[np.float32] = logits.numpy()[0].reshape(count, -1)
        return result

    @property
    def takes_padding(self) -> bool:
        """Whether left padding is possible: the positions are given, not derived from the mask's shape."""
        return self._kv.layout == "concatenated" and {"attention_mask", "position_ids"} <= set(self._graph.inputs)

    def padded(self, tokens: Sequence[int], padding: int) -> NDArray[np.float32]:
        """Logits [len(tokens), logits_size] of a fresh row with ``padding`` pad tokens before it."""
        total = padding + len(tokens)
        mask = np.array([[0] * padding + [1] * len(tokens)], dtype=np.int64)
        feeds: dict[str, NDArray[Any]] = {
            "input_ids": np.array([[tokens[0]] * padding + list(tokens)], dtype=np.int64),
            "attention_mask": mask,
            "position_ids": np.maximum(mask.cumsum(axis=1) - 1, 0),
        }
        empty = np.zeros((1, self._kv.heads, 0, self._kv.head_size), dtype=np.float32)
        inputs = {name: feeds[name] for name in self._graph.inputs} | dict.fromkeys(self._past, empty)
        logits = self._run(lambda: self._session.run([self._graph.logits], inputs))[0]
        result: NDArray[np.float32] = logits.reshape(total, -1)[padding:]
        return result

    def milliseconds_per_token(self, *, at: int, steps: int = 24) -> float:
        """Median time of one decoding step once ``at`` tokens are in the cache."""
        self.reset()
        token = int(self.feed([1] * at)[-1].argmax())
        spent = []
        for _ in range(steps):
            start = time.perf_counter()
            token = int(self.feed([token])[-1].argmax())
            spent.append(time.perf_counter() - start)
        return float(np.median(spent)) * 1000

    def _value(self, array: NDArray[Any]) -> Any:
        return self._ort.OrtValue.ortvalue_from_numpy(array)

    def _run(self, call: Any) -> Any:
        try:
            return call()
        except Exception as error:
            raise ExportError(f"onnxruntime cannot run the exported graph: {one_line(error)}") from error
