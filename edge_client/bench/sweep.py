"""Look-ahead by concurrency: what drafts save a target that many streams share, as a table to set limits from."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...protocol.errors import DraftwireError
from ..trace import Trace
from .processes import CoreSplit, ask_program

__all__ = ["SWEEP_LOOK_AHEADS", "SWEEP_STREAMS", "SweepPlan", "run_sweep", "sweep_report"]

SWEEP_LOOK_AHEADS = (1, 2, 3, 5, 8)
SWEEP_STREAMS = (1, 4, 8, 16, 32, 64)

_FIELDS = {"streams", "look_ahead", "gain", "least", "most", "tokens_a_pass", "computed", "step_ms", "limit", "flat"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPlan:
    """What to measure: every look-ahead for every number of streams, ``repeats`` times beside plain streaming.

    Each run lasts for ``tokens`` of its fastest stream, and ``positions`` of the trace for all of them, at least.
    """

    target: str
    dtype: str
    streams: Sequence[int]
    look_aheads: Sequence[int]
    tokens: int
    positions: int
    repeats: int


def run_sweep(plan: SweepPlan, trace: Trace, *, cores: CoreSplit) -> list[dict[str, Any]]:
    """What ``python -m draftwire.cloud_verifier.capacity_timing`` reports of each cell, on the target's core.

    Args:
        plan: what to measure.
        trace: where the draft was right on text of the target; its greedy records are replayed.
        cores: the target's is used.

    Raises:
        DraftwireError: it failed, or reported something else.
    """
    with tempfile.TemporaryDirectory(prefix="draftwire-sweep-") as folder:
        file = Path(folder) / "trace.json"
        trace.save(file)
        arguments = [plan.target, str(file), "--dtype", plan.dtype, "--threads", "1", "--json"]
        arguments += ["--streams", ",".join(map(str, plan.streams))]
        arguments += ["--look-ahead", ",".join(map(str, plan.look_aheads))]
        arguments += ["--tokens", str(plan.tokens), "--positions", str(plan.positions)]
        arguments += ["--repeats", str(plan.repeats)]
        with cores.target():
            answer = ask_program("draftwire.cloud_verifier.capacity_timing", arguments)
    cells = answer.get("cells") if isinstance(answer, dict) else None
    if not isinstance(cells, list) or not all(isinstance(cell, dict) and cell.keys() >= _FIELDS for cell in cells):
        raise DraftwireError("the sweep's report is not what was expected; are both ends from one version?")
    return cells


def sweep_report(cells: Sequence[dict[str, Any]]) -> str:
    """A table of gains, a row for each number of streams and a column for each look-ahead; and what is best there."""
    aheads = sorted({cell["look_ahead"] for cell in cells})
    by_place = {(cell["streams"], cell["look_ahead"]): cell for cell in cells}
    lines = [
        "Committed tokens a second of the target, against plain streaming of as many streams (cost policy, greedy)",
        "",
        "streams" + "".join(f"{f'look-ahead {ahead}':>15}" for ahead in aheads) + f"{'best':>8}{'step, ms':>11}",
    ]
    for streams in sorted({cell["streams"] for cell in cells}):
        row = [cell for ahead in aheads if (cell := by_place.get((streams, ahead))) is not None]
        best = max(row, key=lambda cell: float(cell["gain"]))
        gains = "".join(f"{cell['gain']:14.2f}x" for cell in row)
        lines.append(f"{streams:7}{gains}{best['look_ahead']:8}{best['step_ms']:11.1f}")
    return "\n".join(lines)
