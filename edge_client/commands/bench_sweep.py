"""``draftwire bench --sweep``: what is asked for, checked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ...protocol.errors import InvalidParameterError
from ..bench.modes import CLOUD_ONLY
from ..bench.sweep import SWEEP_LOOK_AHEADS, SWEEP_STREAMS, SweepPlan

__all__ = ["add_sweep_options", "sweep_plan"]


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    """``--sweep`` and what belongs to it."""
    group = parser.add_argument_group("what many streams cost")
    group.add_argument(
        "--sweep",
        action="store_true",
        help="instead of the grid: look-ahead by number of streams, on a target whose devices are replayed from a "
        "trace that is recorded first",
    )
    group.add_argument("--streams", metavar="N,...", help=f"with --sweep (default {','.join(map(str, SWEEP_STREAMS))})")
    group.add_argument(
        "--look-aheads", metavar="N,...", help=f"with --sweep (default {','.join(map(str, SWEEP_LOOK_AHEADS))})"
    )


def sweep_plan(parsed: argparse.Namespace, *, dtype: str) -> SweepPlan | None:
    """None without ``--sweep``. With it the grid in ``parsed`` shrinks to what a trace is recorded from: greedy text
    without an emulated network.

    Raises:
        InvalidParameterError: an option does not go with the others.
    """
    if not parsed.sweep:
        for option in ("streams", "look_aheads"):
            if getattr(parsed, option) is not None:
                raise InvalidParameterError(f"--{option.replace('_', '-')}", "belongs to --sweep")
        return None
    for option in ("rtt", "jitter", "bandwidth", "temperature", "modes", "adverse", "plot", "url"):
        if getattr(parsed, option) is not None:
            raise InvalidParameterError(f"--{option}", "does not go with --sweep, which needs no network")
    if parsed.reference:
        raise InvalidParameterError("--reference", "does not go with --sweep")
    parsed.rtt, parsed.temperature, parsed.modes = "0", "0", CLOUD_ONLY
    quick = parsed.quick
    return SweepPlan(
        target="",
        dtype=dtype,
        streams=_counts(parsed.streams, SWEEP_STREAMS[:4:3] if quick else SWEEP_STREAMS, field="--streams"),
        look_aheads=_counts(parsed.look_aheads, SWEEP_LOOK_AHEADS, field="--look-aheads"),
        tokens=16 if quick else 32,
        positions=100 if quick else 1000,
        repeats=1 if quick else 3,
    )


def _counts(text: str | None, usual: Sequence[int], *, field: str) -> list[int]:
    if text is None:
        return list(usual)
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1 or max(counts) > (32 if field == "--look-aheads" else 1024):
        raise InvalidParameterError(field, f"must be numbers from 1 up, with commas between them, not {text!r}")
    return counts
