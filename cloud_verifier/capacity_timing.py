"""``python -m draftwire.cloud_verifier.capacity_timing MODEL TRACE``: what drafts save a target that many share.

Committed tokens a second of the target, cost policy, greedy, against plain streaming of as many streams on the same
target, side by side; see :mod:`.capacity_replay` for how. ``draftwire bench --sweep`` records the trace and runs this.

The limit is E(k) T(S) / T(S (k + 1)) for S streams and the best look-ahead k up to the one measured: E(k) tokens a pass
by the trace, T(M) the measured time of a step over M tokens. ``flat`` is what the same scheduler reaches where T(M) is
the same up to M = 200, as on a large accelerator.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..protocol.errors import DraftwireError, InvalidParameterError
from .capacity_replay import Result, Script, load_script, run
from .engine.scheduler import Scheduler
from .step_timing import measure
from .targets.target import Target
from .targets.transformers_target import TransformersTarget

__all__ = ["Cell", "main", "sweep"]

_PLAIN_TOKENS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One look-ahead for so many streams. ``gain`` is the middle of the repeats, ``least`` and ``most`` their ends;
    ``tokens_a_pass`` are committed for each stream, ``computed`` verified for it in a step of ``step_ms``.
    """

    streams: int
    look_ahead: int
    gain: float
    least: float
    most: float
    tokens_a_pass: float
    computed: float
    step_ms: float
    limit: float
    limit_at: int
    flat: float

    @property
    def reached(self) -> float:
        """The fraction of the limit."""
        return self.gain / self.limit


def sweep(
    script: Script,
    model: Target,
    *,
    streams: Sequence[int],
    look_aheads: Sequence[int],
    tokens: int,
    positions: int,
    repeats: int,
) -> Iterator[Cell]:
    """Measure every cell, one number of streams after the other.

    Args:
        script: of the devices.
        model: no stream of which is open.
        streams: how many at once.
        look_aheads: draft tokens of each beyond what is committed, at least 1.
        tokens: of the fastest stream in each run, at least.
        positions: of the script that the streams of a run see together, at least: few streams run longer.
        repeats: of each cell beside plain streaming.
    """
    curve = _curve(model, streams, max(look_aheads), rounds=2 * repeats + 1)
    for count in streams:
        for ahead in look_aheads:
            yield _cell(script, model, curve, count, ahead, max(tokens, positions // count), repeats)


def _cell(
    script: Script,
    model: Target,
    curve: Callable[[int], float],
    streams: int,
    look_ahead: int,
    tokens: int,
    repeats: int,
) -> Cell:
    def result(model: Target | None, ahead: int, length: int) -> Result:
        return run(script, model=model, streams=streams, look_ahead=ahead, tokens=length, scheduler=Scheduler())

    pairs = [(result(model, 0, min(tokens, _PLAIN_TOKENS)), result(model, look_ahead, tokens)) for _ in range(repeats)]
    gains = [drafted.rate / plain.rate for plain, drafted in pairs]
    drafted = pairs[-1][1]
    limit_at, limit = _limit(script, curve, streams, look_ahead)
    return Cell(
        streams=streams,
        look_ahead=look_ahead,
        gain=statistics.median(gains),
        least=min(gains),
        most=max(gains),
        tokens_a_pass=drafted.committed / drafted.steps / streams,
        computed=drafted.tokens / drafted.steps / streams,
        step_ms=1000 * drafted.seconds / drafted.steps,
        limit=limit,
        limit_at=limit_at,
        flat=result(None, look_ahead, tokens).rate / result(None, 0, min(tokens, _PLAIN_TOKENS)).rate,
    )


def _limit(script: Script, seconds: Callable[[int], float], streams: int, most: int) -> tuple[int, float]:
    """The best look-ahead and what it would bring, if every stream verified so many proposals in every step."""
    gains = (
        (script.expected(ahead) * seconds(streams) / seconds(streams * (ahead + 1)), ahead)
        for ahead in range(1, most + 1)
    )
    gain, ahead = max(gains)
    return ahead, gain


def _curve(target: Target, counts: Sequence[int], most: int, *, rounds: int) -> Callable[[int], float]:
    """Seconds of a step over M tokens, measured at some M and straight between them."""
    shapes = dict.fromkeys(
        (count, 1 + ahead) for count in counts for ahead in sorted({0, 1, 2, 4, most}) if ahead <= most
    )
    times = measure(target, [(1, 1), *(shape for shape in shapes if shape != (1, 1))], context=150, rounds=rounds)
    points: dict[int, float] = {}
    for (streams, each), value in times.items():
        points[streams * each] = min(value, points.get(streams * each, value))
    xs = sorted(points)
    return lambda tokens: float(np.interp(tokens, xs, [points[x] for x in xs]))


def _table(cells: Iterator[Cell]) -> Iterator[str]:
    yield "streams  look-ahead     gain      spread   tokens a pass  computed  step ms    limit (at)  reached     flat"
    for cell in cells:
        yield (
            f"{cell.streams:7}  {cell.look_ahead:10}   {cell.gain:5.2f}x   {cell.least:.2f}-{cell.most:.2f}"
            f"   {cell.tokens_a_pass:13.2f}  {cell.computed:8.2f}  {cell.step_ms:7.1f}"
            f"   {cell.limit:5.2f}x ({cell.limit_at})  {cell.reached:7.0%}   {cell.flat:5.2f}x"
        )


def _counts(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if not counts or min(counts) < 1 or max(counts) > 1024:
        raise argparse.ArgumentTypeError("must be numbers from 1 to 1024, with commas between them")
    return counts


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwire.cloud_verifier.capacity_timing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="hub id, folder or GGUF file")
    parser.add_argument("trace", help="file written by draftwire bench --record")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto)")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: torch's choice)")
    parser.add_argument("--streams", type=_counts, default="1,4,16", help="how many at once (default: %(default)s)")
    parser.add_argument("--look-ahead", type=_counts, default="8", help="draft tokens ahead (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=64, help="of the fastest stream in each run (default: 64)")
    parser.add_argument(
        "--positions", type=int, default=1000, help="of text, for all streams of a run together (default: 1000)"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs beside plain streaming (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(argv)
    try:
        if max(options.look_ahead) > 32:
            raise InvalidParameterError("--look-ahead", "must be at most 32")
        script = load_script(options.trace)
        model = TransformersTarget.load(
            options.model, dtype=options.dtype, device=options.device, threads=options.threads
        )
        cells = sweep(
            script,
            model,
            streams=options.streams,
            look_aheads=options.look_ahead,
            tokens=max(options.tokens, 8),
            positions=options.positions,
            repeats=max(options.repeats, 1),
        )
        if options.json:
            rows = [{**dataclasses.asdict(cell), "reached": cell.reached} for cell in cells]
            print(json.dumps({"target": model.info.name, "dtype": model.info.dtype, "cells": rows}))
            return 0
        print(f"{model.info.name}, {model.info.dtype} on {model.info.device}; cost policy, greedy")
        for row in _table(cells):
            print(row, flush=True)
    except DraftwireError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
