"""The benchmark's figures as tables of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .mode_result import ModeResult
from .modes import parse_modes
from .outcome import Outcome
from .spread import Spread

__all__ = ["WIDTH", "Column", "header", "quartiles", "range_of", "report", "row", "wrapped_heading"]

WIDTH = 100
"""Most columns of a line."""

_POSITIONS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table, aligned to the right; to the left where ``width`` is below 0.

    ``above`` stands over the name, and may reach over the columns before.
    """

    name: str
    width: int
    above: str = ""


def header(columns: Sequence[Column]) -> list[str]:
    """One line, or two where anything is to stand above the names."""
    over, end = "", 0
    for column in columns:
        end += abs(column.width)
        if column.above:
            over = f"{over:<{end - len(column.above)}}{column.above}"
    return [*([over] if over else []), row(columns, [column.name for column in columns])]


def row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    """One line of a table."""
    parts = [
        f"{cell:<{-column.width}}" if column.width < 0 else f"{cell:>{column.width}}"
        for column, cell in zip(columns, cells, strict=True)
    ]
    return "".join(parts).rstrip()


def quartiles(ratio: Spread) -> str:
    """Between which quartiles the ratios lie; of one value there is nothing to tell."""
    return _span(ratio.low_quartile, ratio.high_quartile) if ratio.count > 1 else "-"


def range_of(ratio: Spread) -> str:
    """Between which values the ratios lie; of one value there is nothing to tell."""
    return _span(ratio.least, ratio.most) if ratio.count > 1 else "-"


def wrapped_heading(text: str) -> list[str]:
    """Its lines, none too long, and an empty one; nothing of nothing."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, WIDTH)]
    return [*lines, ""] if lines else []


def report(outcomes: Sequence[Outcome], references: Sequence[dict[str, Any]] = (), *, heading: str = "") -> str:
    """Every table, and what failed.

    Args:
        outcomes: in the order in which they are to be shown.
        references: as :func:`~.references.run_references` gives them.
        heading: above the tables, where there are any: what was measured.
    """
    measured = [outcome for outcome in outcomes if outcome.modes]
    lines = wrapped_heading(heading) if measured else []
    abouts = list(_modes(measured))
    for temperature in dict.fromkeys(outcome.condition.temperature for outcome in measured):
        shown = [each for each in measured if each.condition.temperature == temperature]
        for table in _TABLES:
            lines += [f"{table.title}, temperature {temperature:g}", ""]
            lines += _rows(shown, table)
            lines += [*textwrap.wrap(table.note, WIDTH), *abouts, ""]
            abouts = []  # they are for the first table
    lines += [*_references(references), *_incomplete(outcomes)]
    return "\n".join(lines).rstrip()


@dataclass(frozen=True, slots=True)
class _Table:
    title: str
    columns: tuple[tuple[Column, Callable[[ModeResult], str]], ...]
    note: str
    leads: tuple[tuple[Column, Callable[[Outcome], str]], ...]
    """They come before the mode, once for a condition."""


def _rows(outcomes: Sequence[Outcome], table: _Table) -> Iterator[str]:
    columns = [*(column for column, _ in table.leads), _MODE, *(column for column, _ in table.columns)]
    yield from header(columns)
    for outcome in outcomes:
        leads = [cell(outcome) for _, cell in table.leads]
        for result in outcome.modes:
            mode = f"  {result.mode} {result.variant}".rstrip()
            yield row(columns, [*leads, mode, *(cell(result) for _, cell in table.columns)])
            leads = [""] * len(leads)


def _modes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    names = dict.fromkeys(result.mode for outcome in outcomes for result in outcome.modes)
    for mode in parse_modes(list(names)) if names else ():
        yield from textwrap.wrap(f"{mode.name + ':':<12} {mode.about}", WIDTH, subsequent_indent=" " * 13)


# --- cells ------------------------------------------------------------------------------------------------------------


def _span(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def _of_pair(first: float, second: float) -> str:
    return f"{first:.0f} / {second:.0f}"


def _or_dash(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _measured_rtt(outcome: Outcome) -> str:
    return _or_dash(None if outcome.rtt is None else 1000 * outcome.rtt, 1)


def _at(position: int) -> Callable[[ModeResult], str]:
    def cell(result: ModeResult) -> str:
        beyond = result.look_ahead is not None and position > result.look_ahead
        if result.acceptance_rate is None or beyond:
            return "-"
        shares = result.accepted_by_position
        return f"{shares[position - 1] if position <= len(shares) else 0.0:.2f}"

    return cell


# --- tables -----------------------------------------------------------------------------------------------------------

_RTT = (Column("RTT ms", 6), lambda outcome: f"{outcome.condition.net.rtt_ms:g}")
_MEASURED = (Column("measured", 10), _measured_rtt)
_MODE = Column("  mode", -14)

_TABLES: tuple[_Table, ...] = (
    _Table(
        "Speed",
        (
            (Column("tokens/s", 9), lambda it: f"{it.tokens_per_second:.1f}"),
            (Column("ratio", 7), lambda it: f"{it.ratio.middle:.2f}x"),
            (Column("quartiles", 14), lambda it: quartiles(it.ratio)),
            (Column("least to most", 15), lambda it: range_of(it.ratio)),
            (Column("predicted", 11), lambda it: "-" if it.predicted is None else f"{it.predicted:.2f}x"),
            (Column("of predicted", 14), lambda it: "-" if it.of_predicted is None else f"{it.of_predicted:.0%}"),
        ),
        "RTT ms: emulated, and the whole round trip as measured. Ratio: speed over cloud-only, geometric mean over the "
        "prompts, then its spread. Predicted: what drafting without pause on one path gives (serial: in rounds) by "
        "the step, draft time and round trip measured here, and where the draft is right. It is no bound: of predicted "
        "may be over 100%.",
        (_RTT, _MEASURED),
    ),
    _Table(
        "Latency and cost",
        (
            (Column("TTFT ms", 8), lambda it: f"{it.ttft_ms:.0f}"),
            (Column("TPOT ms", 9), lambda it: f"{it.tpot_ms:.1f}"),
            (Column("p50", 8), lambda it: f"{it.itl_ms['p50']:.0f}"),
            (Column("p95", 6), lambda it: f"{it.itl_ms['p95']:.0f}"),
            (Column("p99", 6, "between commits ms"), lambda it: f"{it.itl_ms['p99']:.0f}"),
            (Column("/token", 8, "passes"), lambda it: f"{it.target_passes_per_token:.2f}"),
            (Column("accepted", 10), lambda it: _or_dash(it.acceptance_rate)),
            (
                Column("up/down", 13, "bytes/token"),
                lambda it: _of_pair(it.bytes_up_per_token, it.bytes_down_per_token),
            ),
            (Column("/token", 8, "CPU ms"), lambda it: f"{it.cpu_ms_per_token:.1f}"),
        ),
        "TTFT: time to the first token; TPOT: time per token after the first. Passes of the target, bytes, and the "
        "device's CPU time for drafting are for each committed token. Accepted: share of the draft tokens tested.",
        (_RTT,),
    ),
    _Table(
        "Where a round goes",
        (
            (Column("round", 8), lambda it: f"{it.round.lasted:.1f}"),
            (Column("draft", 8), lambda it: f"{it.round.draft:.1f}"),
            (Column("wire", 8), lambda it: _or_dash(it.round.wire, 1)),
            (Column("queue", 8), lambda it: f"{it.round.queue:.1f}"),
            (Column("target", 8, "ms, mean of a round"), lambda it: f"{it.round.target:.1f}"),
            *((Column(f"+{position}", 6), _at(position)) for position in _POSITIONS[:-1]),
            (Column(f"+{_POSITIONS[-1]}", 6, "share with N or more accepted, +N"), _at(_POSITIONS[-1])),
        ),
        "Round: from one commit to the next; its parts overlap except in serial mode. +N: share of the rounds with a "
        "draft in which at least N of its tokens were accepted.",
        (_RTT,),
    ),
)


def _references(references: Sequence[dict[str, Any]]) -> Iterator[str]:
    if not references:
        return
    yield "Hugging Face on the target's core, no network, the same prompts"
    yield ""
    yield f"{'temperature':>11}  {'way':<20}{'tokens/s':>10}{'TTFT ms':>9}"
    for reference in references:
        for way, title in (("generate", "generate"), ("assisted", "assisted generation")):
            speed = reference[way]
            temperature = f"{reference['temperature']:g}" if way == "generate" else ""
            yield f"{temperature:>11}  {title:<20}{speed['tokens_per_second']:>10.1f}{speed['ttft_ms']:>9.0f}"
    yield from textwrap.wrap(f"Assistant: {references[0]['assistant']}.", WIDTH)
    yield ""


def _incomplete(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.failure is not None:
            yield f"Failed: {outcome.condition}: {outcome.failure}"
        elif not outcome.complete:
            done = len({(answer.prompt, answer.repeat) for answer in outcome.answers})
            yield f"Interrupted: {outcome.condition}, after {done} prompt{'' if done == 1 else 's'}"
