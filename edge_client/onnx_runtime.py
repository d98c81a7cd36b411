"""The door to onnxruntime: a session with device manners, and the KV cache of each layout bound to it.

Two layouts exist (``Manifest.kv.layout``), behind one small interface, :class:`CachedGraph`:

* :class:`SharedBufferGraph`: keys and values live in buffers ``[1, heads, capacity, head_size]`` that the graph reads
  and writes in place, bound once. Rollback sets a number. Buffers double as needed, up to the context length.
* :class:`ConcatenatedGraph`: each run returns past plus new tokens, and that becomes the next past without passing
  through Python. Rollback cuts the past once, just before the next run.

Both bind ids, mask, positions and logits to reused buffers, and always give the graph explicit positions where it
takes them. Nothing of onnxruntime's own, exceptions included, leaves this module.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import (
    BundleCorruptError,
    BundleNotFoundError,
    DrafterError,
    InvalidParameterError,
    MissingDependencyError,
)
from ..protocol.manifest import Manifest

try:
    import onnxruntime as ort  # type: ignore[import-untyped]
except ImportError as error:
    raise MissingDependencyError("onnxruntime is not installed; install draftwire[edge]") from error

__all__ = [
    "DEFAULT_PROVIDERS",
    "CachedGraph",
    "ConcatenatedGraph",
    "SharedBufferGraph",
    "available_providers",
    "check_providers",
    "check_threads",
    "default_threads",
    "load_graph",
    "onnxruntime_version",
    "open_session",
]

DEFAULT_PROVIDERS = ("CPUExecutionProvider",)
MAX_THREADS = 256
FIRST_CAPACITY = 256
# The graph computes logits for every row; long prompts run in chunks so that this buffer stays small.
LOGITS_BUFFER_BYTES = 16 << 20
MIN_ROWS, MAX_ROWS = 16, 64

ELEMENT_TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
}
# Where a provider wants the KV cache to live; all others work in host memory.
DEVICES = {"CUDAExecutionProvider": "cuda", "ROCMExecutionProvider": "cuda"}


def onnxruntime_version() -> str:
    """Version of the onnxruntime in use."""
    return str(ort.__version__)


def available_providers() -> tuple[str, ...]:
    """Execution providers that this onnxruntime was built with."""
    return tuple(ort.get_available_providers())


def default_threads() -> int:
    """Half of the cores this process may use, at least one: the app it lives in needs the others."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


def load_graph(
    folder: Path | str,
    manifest: Manifest,
    *,
    threads: int | None = None,
    providers: Sequence[str] = DEFAULT_PROVIDERS,
) -> CachedGraph:
    """Open the bundle's graph with an empty KV cache.

    Raises:
        InvalidParameterError: ``threads`` or ``providers`` is out of range.
        BundleNotFoundError: the graph or its weights are missing.
        BundleCorruptError: the file is no graph, or not the graph that the manifest describes.
        DrafterError: onnxruntime cannot run it.
    """
    if Path(manifest.graph.file).name != manifest.graph.file:
        raise BundleCorruptError(f"draft bundle {folder}: the graph must lie in the folder itself; export it again")
    path = Path(folder) / manifest.graph.file
    session = open_session(path, threads=check_threads(threads), providers=check_providers(providers))
    _check_graph(session, manifest, path)
    kind = SharedBufferGraph if manifest.kv.layout == "shared_buffer" else ConcatenatedGraph
    return kind(session, manifest)


def check_threads(threads: int | None) -> int:
    """The thread count to use; InvalidParameterError when it is out of range."""
    if threads is None:
        return default_threads()
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= MAX_THREADS:
        raise InvalidParameterError("threads", f"must be a whole number from 1 to {MAX_THREADS}, not {threads!r}")
    return threads


def check_providers(providers: Sequence[str]) -> list[str]:
    """The execution providers to use; InvalidParameterError when one is not available here."""
    names = [providers] if isinstance(providers, str) else list(providers)
    available = available_providers()
    unknown = [name for name in names if name not in available]
    if unknown or not names:
        what = f"{', '.join(map(repr, unknown))} is not in this onnxruntime" if unknown else "must name at least one"
        raise InvalidParameterError("providers", f"{what}; available: {', '.join(available)}")
    return names


def open_session(path: Path, *, threads: int, providers: Sequence[str] = DEFAULT_PROVIDERS) -> Any:
    """An onnxruntime session that leaves the device to its user: few threads, asleep while there is nothing to do.

    Raises:
        BundleNotFoundError: the graph or its weights are missing.
        BundleCorruptError: the file is no graph.
        DrafterError: onnxruntime cannot load it.
    """
    if not path.is_file():
        raise BundleNotFoundError(
            f"draft bundle {path.parent} lacks {path.name}; copy the whole folder or export again"
        )
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # A phone's battery pays for threads that spin while the cloud is computing.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # Memory patterns are kept per input shape, and here every step has a new one.
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(str(path), options, providers=list(providers))
    except Exception as error:
        kind, line = type(error).__name__, _first_line(error)
        if kind in ("InvalidProtobuf", "NoModel"):
            raise BundleCorruptError(f"{path} is no ONNX model: {line}; export the draft again") from error
        if kind == "NoSuchFile" or "External data path" in line or "No such file" in line:
            raise BundleNotFoundError(
                f"draft bundle {path.parent} lacks the weights of {path.name}: {line}; copy the whole folder"
            ) from error
        raise DrafterError(
            f"onnxruntime {onnxruntime_version()} cannot load {path}: {line}; update onnxruntime or export again"
        ) from error


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def _check_graph(session: Any, manifest: Manifest, path: Path) -> None:
    """The manifest must describe this very graph, or every later step would fail in a way that explains nothing."""
    kv, layers = manifest.kv, range(manifest.kv.layers)
    expected_in = {
        *manifest.graph.inputs,
        *(name.format(layer=i) for i in layers for name in (kv.past_key, kv.past_value)),
    }
    expected_out = {manifest.graph.logits}
    expected_out |= {name.format(layer=i) for i in layers for name in (kv.present_key, kv.present_value)}
    inputs = {item.name for item in session.get_inputs()}
    outputs = {item.name for item in session.get_outputs()}
    if inputs != expected_in or not expected_out <= outputs:
        wrong = sorted((inputs ^ expected_in) | (expected_out - outputs))
        raise BundleCorruptError(
            f"{path} is not the graph its manifest describes, they differ in {', '.join(wrong[:4])}; export it again"
        )
    unknown = sorted(set(manifest.graph.inputs) - {"input_ids", "attention_mask", "position_ids"})
    if unknown:
        raise DrafterError(f"{path} needs inputs this release cannot give: {', '.join(unknown)}; update draftwire")


class CachedGraph(ABC):
    """A graph and the KV cache of one sequence.

    Not for use from several threads at once. ``length`` tokens are in the cache; ``max_rows`` is the most tokens
    one :meth:`run` takes.
    """

    def __init__(self, session: Any, manifest: Manifest) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._kv = manifest.kv
        self._names = manifest.graph
        self._context_length = manifest.context_length
        self._logits_size = manifest.vocabulary.logits_size
        self._device = next((DEVICES[name] for name in session.get_providers() if name in DEVICES), "cpu")
        types = {item.name: item.type for item in (*session.get_inputs(), *session.get_outputs())}
        self._types = {name: _element_type(types[name], name) for name in (*self._names.inputs, self._names.logits)}
        row_bytes = 4 * self._logits_size
        self.max_rows = min(max(LOGITS_BUFFER_BYTES // row_bytes, MIN_ROWS), MAX_ROWS, self._context_length)
        self._logits = np.empty(self.max_rows * self._logits_size, self._types[self._names.logits])
        self._ones = np.ones((1, self._context_length), self._types.get("attention_mask", np.int64))
        self._rows = 0
        self._row_buffers: dict[str, NDArray[Any]] = {}
        self.length = 0

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers in use, which may be fewer than were asked for."""
        return tuple(self._session.get_providers())

    @property
    def threads(self) -> int:
        """Threads one operator may use."""
        return int(self._session.get_session_options().intra_op_num_threads)

    def run(self, tokens: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Append ``tokens`` (1 to ``max_rows`` ids) and return their logits [len(tokens), logits_size].

        The array may be a view of a buffer that the next run overwrites. If the run fails, ``length`` is as before.

        Raises:
            DrafterError: the context is full, memory is out, or onnxruntime failed.
        """
        count, end = len(tokens), self.length + len(tokens)
        if end > self._context_length:
            raise DrafterError(
                f"the draft's context holds {self._context_length} tokens and {end} are needed; stop drafting here"
            )
        try:
            self._prepare(end)
            self._bind_rows(count)
            self._row_buffers["input_ids"][0] = tokens
            if "position_ids" in self._row_buffers:
                self._row_buffers["position_ids"][0] = np.arange(self.length, end)
            if "attention_mask" in self._types:
                # A view of the same ones, so a longer mask costs nothing; its sum tells fused attention the length.
                self._binding.bind_ortvalue_input("attention_mask", _wrap(self._ones[:, :end]))
            self._session.run_with_iobinding(self._binding)
            self._finish()
        except MemoryError as error:
            raise DrafterError(f"out of memory for a draft context of {end} tokens; use a shorter one") from error
        except Exception as error:
            raise DrafterError(f"the draft model failed: {_first_line(error)}; draft without it") from error
        self.length = end
        logits = self._logits[: count * self._logits_size].reshape(count, self._logits_size)
        return logits.astype(np.float32, copy=False)

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        if not 0 <= length <= self.length:
            raise InvalidParameterError("length", f"must be from 0 to {self.length}, not {length}")
        self.length = length

    @abstractmethod
    def _prepare(self, end: int) -> None:
        """Make the bound cache hold exactly ``length`` tokens, with room for ``end``."""

    def _finish(self) -> None:  # noqa: B027 - a hook, and most layouts need none
        """Take over what the run wrote."""

    def _bind_rows(self, count: int) -> None:
        """Bind ids, positions and logits for ``count`` rows; for the usual one row after another, nothing to do."""
        if count == self._rows:
            return
        for name in {"input_ids", "position_ids"} & self._types.keys():
            self._row_buffers[name] = np.zeros((1, count), self._types[name])
            self._binding.bind_ortvalue_input(name, _wrap(self._row_buffers[name]))
        view = self._logits[: count * self._logits_size].reshape(1, count, self._logits_size)
        self._binding.bind_ortvalue_output(self._names.logits, _wrap(view))
        self._rows = count

    def _tensors(self) -> list[tuple[str, str]]:
        """Names of (past, present), keys and values of every layer."""
        pairs = ((self._kv.past_key, self._kv.present_key), (self._kv.past_value, self._kv.present_value))
        return [(a.format(layer=i), b.format(layer=i)) for i in range(self._kv.layers) for a, b in pairs]

    def _new_tensor(self, capacity: int, old: Any = None) -> Any:
        """An OrtValue [1, heads, capacity, head_size] that starts with the tokens kept of ``old``, then zeros."""
        array = np.zeros((1, self._kv.heads, capacity, self._kv.head_size), np.dtype(self._kv.dtype))
        if old is not None:
            array[:, :, : self.length] = old.numpy()[:, :, : self.length]
        return ort.OrtValue.ortvalue_from_numpy(array, self._device, 0)


class SharedBufferGraph(CachedGraph):
    """KV written in place. What lies beyond ``length`` in a buffer is never read, so rollback needs no work."""

    def __init__(self, session: Any, manifest: Manifest) -> None:
        super().__init__(session, manifest)
        self.capacity = 0
        self._buffers: dict[str, Any] = {}

    def _prepare(self, end: int) -> None:
        if end <= self.capacity:
            return
        capacity = min(max(FIRST_CAPACITY, 2 * self.capacity, end), self._context_length)
        # One tensor at a time: its old buffer is freed before the next grows. A failure between leaves mixed sizes,
        # so the capacity counts as unknown until all have grown.
        self.capacity = 0
        for past, present in self._tensors():
            buffer = self._new_tensor(capacity, self._buffers.get(past))
            self._binding.bind_ortvalue_input(past, buffer)
            self._binding.bind_ortvalue_output(present, buffer)
            self._buffers[past] = buffer
        self.capacity = capacity


class ConcatenatedGraph(CachedGraph):
    """KV returned by each run, the new past of the next one."""

    def __init__(self, session: Any, manifest: Manifest) -> None:
        super().__init__(session, manifest)
        self._past = {past: self._new_tensor(0) for past, _ in self._tensors()}
        self._held = 0
        # The bound outputs come back in the order of binding; logits first.
        self._bind_rows(1)

    def _prepare(self, end: int) -> None:
        del end  # each run allocates its own
        if self._held != self.length:
            self._past = {past: self._new_tensor(self.length, value) for past, value in self._past.items()}
            self._held = self.length
        for past, present in self._tensors():
            self._binding.bind_ortvalue_input(past, self._past[past])
            self._binding.bind_output(present, self._device)

    def _finish(self) -> None:
        _, *presents = self._binding.get_outputs()
        for (past, _), present in zip(self._tensors(), presents, strict=True):
            self._past[past] = present
        self._held = int(presents[0].shape()[2])


def _wrap(array: NDArray[Any]) -> Any:
    """An OrtValue over the array's own memory; the caller keeps the array alive."""
    return ort.OrtValue.ortvalue_from_numpy(array)


def _element_type(declared: str, name: str) -> type[np.generic]:
    if declared not in ELEMENT_TYPES:
        raise BundleCorruptError(f"the draft's {name} has element type {declared}, which no draft has; export it again")
    return ELEMENT_TYPES[declared]
