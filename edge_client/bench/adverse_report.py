"""The adverse figures as one table of at most 100 columns, and what is out of bounds."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from .adverse_outcome import LEAST_SPEED, MOST_FIRST, AdverseOutcome
from .report import WIDTH, Column, header, quartiles, range_of, row, wrapped_heading

__all__ = ["adverse_report", "verdict"]

_COLUMNS = (
    Column("condition", -9),
    Column("tokens/s", 13),
    Column("ratio", 7, "speed"),
    Column("quartiles", 13),
    Column("least to most", 15),
    Column("TTFT ms", 12),
    Column("ratio", 12, "first-token"),
    Column("/token", 9, "drafted"),
    Column("/token", 9, "bytes"),
)
_NOTE = (
    "Of pairs: cloud-only, then with a draft. Speed ratio: of tokens/s, geometric mean over the prompts, then its "
    "spread. First-token ratio: of TTFT, the time to the first token, median over the pairs. For each committed token "
    "with a draft: tokens drafted on the device, bytes up/down."
)


def adverse_report(outcomes: Sequence[AdverseOutcome], *, heading: str = "") -> str:
    """The table below its heading, what failed, and the verdict; nothing where there is nothing to tell."""
    shown = [each for each in outcomes if each.both is not None]
    lines: list[str] = []
    if shown:
        lines += [*wrapped_heading(heading), "Drafting under adverse conditions", "", *header(_COLUMNS)]
        lines += [row(_COLUMNS, _cells(each)) for each in shown]
        lines += [*textwrap.wrap(_NOTE, WIDTH), ""]
        lines += [f"{each.adversity.name + ':':<10}{each.adversity.about}" for each in shown]
        lines.append("")
    lines += _incomplete(outcomes)
    if shown:
        lines += textwrap.wrap(verdict(shown), WIDTH)
    return "\n".join(lines)


def verdict(outcomes: Sequence[AdverseOutcome]) -> str:
    """Which of the conditions measured are out of bounds, in a line."""
    slow = [f"{each.adversity.name} ({each.both[1].ratio.middle:.3f}x)" for each in outcomes if each.slow and each.both]
    late = [_first_token(each) for each in outcomes if each.late and each.sure]
    unsure = [_first_token(each) for each in outcomes if not each.sure]
    perhaps = f"; perhaps: {_listed(unsure)}" if unsure else ""
    return f"Under {LEAST_SPEED}x: {_listed(slow)}. First token over {MOST_FIRST}x: {_listed(late)}{perhaps}."


def _first_token(outcome: AdverseOutcome) -> str:
    first = outcome.first_token
    assert first is not None
    interval = f"{first.low:.2f} to {first.high:.2f}"
    how = f"95% interval {interval}" if outcome.sure else f"not sure: {interval} holds {MOST_FIRST}"
    return f"{outcome.adversity.name} ({first.ratio:.3f}x, {how})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _cells(outcome: AdverseOutcome) -> list[str]:
    assert outcome.both is not None
    alone, drafted = outcome.both
    ratio, first = drafted.ratio, outcome.first_token
    assert first is not None
    return [
        outcome.adversity.name,
        f"{alone.tokens_per_second:.1f} / {drafted.tokens_per_second:.1f}",
        f"{ratio.middle:.2f}x",
        quartiles(ratio),
        range_of(ratio),
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
