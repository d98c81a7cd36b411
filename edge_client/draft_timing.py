"""How long a drafted token takes: this SDK's drafter beside a bare loop over the same graph.

    python -m draftwire.edge_client.draft_timing BUNDLE [--threads N] [--tokens N] [--plain FOLDER]

The bare loop is the least that can be written: buffers bound once, ids and mask set, run, argmax. ``--plain`` adds a
folder with an unfused ``model.onnx`` (past in, present out) run as numpy arrays. All loops get the same tokens, turn
by turn, so that a change in the machine's speed meets them alike.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ..protocol.errors import DraftwireError, InvalidParameterError
from ..protocol.manifest import Manifest
from ..protocol.sampling import SamplingParams
from .device import Device
from .drafter import Drafter
from .onnx_runtime import default_threads, open_session
from .proposer import Proposer

__all__ = ["main", "measure"]

Step = Callable[[int], int]  # feeds a token, returns the most likely next


def bare_loop(folder: Path, manifest: Manifest, *, threads: int, capacity: int) -> Step:
    """The least a drafting loop over a shared-buffer graph can do."""
    if manifest.kv.layout != "shared_buffer":
        raise InvalidParameterError("bundle", "the bare loop needs a fused graph with its KV in a shared buffer")
    binding = (session := open_session(folder / manifest.graph.file, threads=threads)).io_binding()
    kv, dtype = manifest.kv, np.dtype(manifest.kv.dtype)
    buffers = []
    for layer in range(kv.layers):
        for past, present in ((kv.past_key, kv.present_key), (kv.past_value, kv.present_value)):
            buffer = np.zeros((1, kv.heads, capacity, kv.head_size), dtype)
            place = ("cpu", 0, dtype.type, buffer.shape, buffer.ctypes.data)
            binding.bind_input(past.format(layer=layer), *place)
            binding.bind_output(present.format(layer=layer), *place)
            buffers.append(buffer)
    ids, ones, length = np.zeros((1, 1), np.int64), np.ones((1, capacity), np.int64), 0
    logits = np.zeros((1, 1, manifest.vocabulary.logits_size), np.float32)
    binding.bind_cpu_input("input_ids", ids)
    binding.bind_output(manifest.graph.logits, "cpu", 0, np.float32, logits.shape, logits.ctypes.data)

    def step(token: int) -> int:
        nonlocal length
        assert buffers  # bound by address, so this closure keeps them alive
        length += 1
        ids[0, 0] = token
        binding.bind_cpu_input("attention_mask", ones[:, :length])
        session.run_with_iobinding(binding)
        return int(logits.argmax())

    return step


def drafter_loop(folder: Path, *, threads: int) -> Step:
    """The SDK's drafter, as streams use it."""
    drafter = Drafter.load(folder, threads=threads)
    return lambda token: int(drafter.feed([token]).argmax())


def stream_loop(folder: Path, *, threads: int, until: ExitStack) -> Step:
    """A whole drafting step as streams take it: through the device's thread, with the proposal drawn."""
    runner = until.enter_context(asyncio.Runner())
    device = runner.run(Device.open(folder, threads=threads))
    until.callback(lambda: runner.run(device.close()))
    drafter = runner.run(device.drafter())
    proposer = Proposer(SamplingParams(), seed=0, prompt_length=1)
    tokens: list[int] = []

    def step(token: int) -> int:
        tokens.append(token)
        return runner.run(device.draft(drafter, tokens, proposer)).proposal.token

    return step


def plain_loop(folder: Path, *, threads: int) -> Step:
    """An unfused export without IOBinding: every run returns the whole cache."""
    session = open_session(folder / "model.onnx", threads=threads)
    inputs = {item.name: item for item in session.get_inputs()}
    outputs = [item.name for item in session.get_outputs()]
    pasts = [name for name in inputs if name.startswith("past")]
    presents = [name for name in outputs if name.startswith("present")]
    cache: dict[str, Any] = {
        name: np.zeros((1, inputs[name].shape[1], 0, inputs[name].shape[3]), np.float32) for name in pasts
    }
    length = 0

    def step(token: int) -> int:
        nonlocal length, cache
        feeds: dict[str, Any] = {"input_ids": np.array([[token]]), **cache}
        if "attention_mask" in inputs:
            feeds["attention_mask"] = np.ones((1, length + 1), np.int64)
        if "position_ids" in inputs:
            feeds["position_ids"] = np.array([[length]])
        logits, *cached = session.run(["logits", *presents], feeds)
        cache = dict(zip(pasts, cached, strict=True))
        length += 1
        return int(logits[0, -1].argmax())

    return step


def measure(loops: dict[str, Step], tokens: Sequence[int], *, warm: int) -> dict[str, list[float]]:
    """Milliseconds of each token after the first ``warm``, by loop."""
    times: dict[str, list[float]] = {name: [] for name in loops}
    for index, token in enumerate(tokens):
        for name, step in loops.items():
            began = time.perf_counter()
            step(token)
            if index >= warm:
                times[name].append(1e3 * (time.perf_counter() - began))
    return times


def _loops(options: argparse.Namespace, manifest: Manifest, capacity: int, until: ExitStack) -> dict[str, Step]:
    """The loops to compare, by the names they are printed under."""
    loops = {
        "bare IOBinding loop": bare_loop(options.bundle, manifest, threads=options.threads, capacity=capacity),
        "Drafter": drafter_loop(options.bundle, threads=options.threads),
        "drafting in a stream": stream_loop(options.bundle, threads=options.threads, until=until),
    }
    if options.plain:
        loops["plain export"] = plain_loop(options.plain, threads=options.threads)
    return loops


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m draftwire.edge_client.draft_timing", description=__doc__)
    parser.add_argument("bundle", type=Path, help="draft bundle with a fused graph")
    parser.add_argument("--threads", type=int, default=default_threads(), help="default: half the cores")
    parser.add_argument("--tokens", type=int, default=100, help="tokens to time, centred on --position (default 100)")
    parser.add_argument("--position", type=int, default=200, help="tokens in the cache half-way (default 200)")
    parser.add_argument("--plain", type=Path, help="folder with an unfused model.onnx, for comparison")
    options = parser.parse_args(arguments)
    if min(options.threads, options.tokens, options.position) < 1:
        parser.error("--threads, --tokens and --position must be at least 1")
    warm = max(options.position - options.tokens // 2, 1)
    try:
        with ExitStack() as until:
            manifest = Manifest.load(options.bundle)
            capacity = min(warm + options.tokens, manifest.context_length)
            loops = _loops(options, manifest, capacity, until)
            tokens = np.random.default_rng(0).integers(0, manifest.vocabulary.size, capacity).tolist()
            times = measure(loops, tokens, warm=warm)
    except DraftwireError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    base = statistics.median(times["bare IOBinding loop"])
    print(f"{options.threads} thread(s), positions {warm} to {capacity}, median of {capacity - warm} tokens")
    print(f"{'loop':24}{'ms/token':>10}{'quartiles':>18}{'ratio':>8}")
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else values * 3
        print(f"{name:24}{middle:>10.2f}{f'{low:.2f} to {high:.2f}':>18}{middle / base:>7.2f}x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
