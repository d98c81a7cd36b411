"""``python -m draftwire.cloud_verifier.step_timing MODEL``: what a step costs by streams and tokens.

The table is of the target alone; the last line is of the whole engine, one stream at work beside others that wait.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..protocol.errors import DraftwireError
from ..protocol.messages import Limits, Message, Open, Policy
from ..protocol.sampling import SamplingParams
from .engine.engine import Engine
from .engine.scheduler import Scheduler
from .engine.stream import Owner
from .targets.target import Block, Target
from .targets.transformers_target import TransformersTarget

__all__ = ["main", "measure", "measure_beside"]

_SHAPES = ((1, 1), (1, 4), (1, 8), (4, 1), (4, 4), (16, 1), (16, 4))
_STEPS = 3


def measure(
    target: Target, shapes: Sequence[tuple[int, int]] = _SHAPES, *, context: int = 200, rounds: int = 15
) -> dict[tuple[int, int], float]:
    """Median seconds of a step for each (streams, tokens per stream), the shapes taken in turn.

    Args:
        target: no stream of which is open.
        shapes: what to measure.
        context: tokens that each stream holds before the step.
        rounds: measurements of each shape, after one to warm up.
    """
    streams = range(1, 1 + max(count for count, _ in shapes))
    prompt = [index % target.info.vocabulary_size for index in range(context)]
    for stream in streams:
        target.open(stream, context + max(tokens for _, tokens in shapes))
        target.step([Block(stream, 0, prompt)])
    times: dict[tuple[int, int], list[float]] = {shape: [] for shape in shapes}
    for _ in range(rounds + 1):
        for count, tokens in shapes:
            blocks = [Block(stream, context, prompt[:tokens], rows=tokens) for stream in streams[:count]]
            begin = time.perf_counter()
            target.step(blocks)
            times[count, tokens].append(time.perf_counter() - begin)
            for block in blocks:
                target.rollback(block.stream, context)
    for stream in streams:
        target.close(stream)
    return {shape: statistics.median(values[1:]) for shape, values in times.items()}


def measure_beside(target: Target, idle: int, *, context: int = 200, rounds: int = 15) -> tuple[float, float]:
    """Median seconds of an engine step over one token of one stream: alone, and beside ``idle`` streams that are open.

    Those wait for a draft, as streams of the cost policy do. Both are measured in each round, as the others come and
    go; see :func:`measure` for the arguments.
    """
    limits = Limits(
        max_context=min(target.info.max_context, context + _STEPS * 4 * (rounds + 2)),
        max_streams=idle + 1,
        max_message_bytes=1 << 20,
        max_draft_tokens=64,
        max_backlog=64,
    )
    engine = Engine(target, limits=limits, prefix_tokens=0, scheduler=Scheduler(patience=600.0))
    active, others = _Nobody(), _Nobody()
    prompt = [index % target.info.vocabulary_size for index in range(context)]
    engine.open(active, _request(1, prompt, limits.max_context - context))
    while not engine.counters.committed:
        engine.step()
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds + 1):
        alone.append(_one_token(engine))
        for stream in range(1, idle + 1):
            engine.open(others, _request(stream, [stream], 2, policy=Policy.COST, drafting=True))
        engine.step()  # they get their places
        beside.append(_one_token(engine))
        engine.drop(others)
        engine.step()
    engine.drop(active)
    engine.step()
    return statistics.median(alone[1:]), statistics.median(beside[1:])


def _one_token(engine: Engine) -> float:
    """Of the active stream; the middle of three, as the first one after others came finds cold caches."""
    times = []
    for _ in range(_STEPS):
        begin, committed = time.perf_counter(), engine.counters.committed
        engine.step()
        times.append(time.perf_counter() - begin)
        assert engine.counters.committed == committed + 1, "a stream that was to wait took part"
    return statistics.median(times)


def _request(stream: int, prompt: list[int], tokens: int, **options: Any) -> Open:
    return Open(
        stream=stream,
        token_ids=tuple(prompt),
        prompt_length=len(prompt),
        params=SamplingParams(),
        max_tokens=tokens,
        seed=1,
        **{"drafting": False, **options},
    )


class _Nobody(Owner):
    """Listens to nothing."""

    def deliver(self, messages: Sequence[Message]) -> None:
        """See :class:`Owner`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwire.cloud_verifier.step_timing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="hub id, folder or GGUF file")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: auto)")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--threads", type=int, default=None, help="torch threads (default: torch's choice)")
    parser.add_argument("--context", type=int, default=200, help="tokens held by each stream (default: 200)")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each shape (default: 15)")
    parser.add_argument("--idle", type=int, default=63, help="streams open beside an active one (default: 63)")
    options = parser.parse_args(argv)
    try:
        target = TransformersTarget.load(
            options.model, dtype=options.dtype, device=options.device, threads=options.threads
        )
        times = measure(target, context=options.context, rounds=options.rounds)
        alone, beside = measure_beside(target, options.idle, context=options.context, rounds=options.rounds)
    except DraftwireError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{target.info.name}, {target.info.dtype} on {target.info.device}, {options.context} tokens held")
    print("streams x tokens      ms   ratio to 1 x 1")
    for (streams, tokens), seconds in times.items():
        print(f"{streams:7} x {tokens:<6} {seconds * 1e3:7.1f}   {seconds / times[1, 1]:.2f}")
    print(f"1 x 1 beside {options.idle} idle streams {beside * 1e3:.1f}, alone {alone * 1e3:.1f}: {beside / alone:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
