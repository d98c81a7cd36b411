"""The adverse figures as one table of at most 100 columns, and what is out of bounds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from .adverse_outcome import LEAST_SPEED, MOST_FIRST, AdverseOutcome

__all__ = ["adverse_report", "verdict"]

_WIDTH = 100
_COLUMNS = (
    ("condition", -9),
    ("tokens/s", 14),
    ("ratio", 8),
    ("quartiles", 14),
    ("least to most", 15),
    ("TTFT ms", 13),
    ("ratio", 8),
    ("drafted", 9),
    ("bytes", 9),
)
_NOTE = (
    "Of pairs: cloud-only, then with a draft. Ratio of tokens/s: geometric mean over the prompts, then its spread; of "
    "TTFT, to the first token: median over the pairs. For a committed token with a draft: tokens drafted on the "
    "device, bytes up/down."
)


def adverse_report(outcomes: Sequence[AdverseOutcome]) -> str:
    """The table, what failed, and the verdict; nothing where there is nothing to tell."""
    shown = [each for each in outcomes if each.both is not None]
    lines: list[str] = []
    if shown:
        lines += ["Drafting under adverse conditions", "", _row([name for name, _ in _COLUMNS])]
        lines += [_row(_cells(each)) for each in shown]
        lines += [*textwrap.wrap(_NOTE, _WIDTH), ""]
        lines += [f"{each.adversity.name + ':':<10}{each.adversity.about}" for each in shown]
        lines.append("")
    lines += _incomplete(outcomes)
    if shown:
        lines += textwrap.wrap(verdict(shown), _WIDTH)
    return "\n".join(lines)


def verdict(outcomes: Sequence[AdverseOutcome]) -> str:
    """Which of the conditions measured are out of bounds, in a line."""
    slow = [f"{each.adversity.name} ({each.both[1].ratio.middle:.3f}x)" for each in outcomes if each.slow and each.both]
    late = [_lateness(each) for each in outcomes if each.late]
    return f"Under {LEAST_SPEED}x: {_listed(slow)}. First token over {MOST_FIRST}x: {_listed(late)}."


def _lateness(outcome: AdverseOutcome) -> str:
    """An interval that holds the bound tells that the pairs were too few, or too uneven, to be sure of it."""
    first = outcome.first_token
    assert first is not None
    return f"{outcome.adversity.name} ({first.ratio:.3f}x, 95% interval {first.low:.2f} to {first.high:.2f})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _row(cells: Sequence[str]) -> str:
    parts = [
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    ]
    return "".join(parts).rstrip()


def _cells(outcome: AdverseOutcome) -> list[str]:
    assert outcome.both is not None
    alone, drafted = outcome.both
    ratio, first = drafted.ratio, outcome.first_token
    assert first is not None
    return [
        outcome.adversity.name,
        f"{alone.tokens_per_second:.1f} / {drafted.tokens_per_second:.1f}",
        f"{ratio.middle:.2f}x",
        f"{ratio.low_quartile:.2f} to {ratio.high_quartile:.2f}",
        f"{ratio.least:.2f} to {ratio.most:.2f}",
        f"{first.cloud_only_ms:.0f} / {first.draftwire_ms:.0f}",
        f"{first.ratio:.2f}x",
        f"{outcome.drafted_per_token:.2f}",
        f"{drafted.bytes_up_per_token:.0f}/{drafted.bytes_down_per_token:.0f}",
    ]


def _incomplete(outcomes: Sequence[AdverseOutcome]) -> Iterator[str]:
    for each in outcomes:
        if each.outcome.failure is not None:
            yield f"Failed: {each.adversity.name}: {each.outcome.failure}"
        elif not each.outcome.complete:
            yield f"Interrupted: {each.adversity.name}, after {len(each.answers) // 2} pairs of answers"
