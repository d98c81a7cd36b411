"""The benchmark's figures as tables of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .figures import Figures
from .outcome import Outcome

__all__ = ["report"]

_Column = tuple[str, int, Callable[[Figures], str]]
_WIDTH = 100
_POSITIONS = (1, 2, 3, 4, 6, 8)


def report(outcomes: Sequence[Outcome], references: Sequence[dict[str, Any]] = ()) -> str:
    """Every table, and what failed.

    Args:
        outcomes: in the order in which they are to be shown.
        references: as :func:`~.references.run_references` gives them.
    """
    lines: list[str] = []
    for temperature in dict.fromkeys(outcome.condition.temperature for outcome in outcomes):
        shown = [each for each in outcomes if each.condition.temperature == temperature and each.modes]
        if not shown:
            continue
        for title, columns, note in _TABLES:
            lines += [f"{title}, temperature {temperature:g}{_prompts(shown)}", ""]
            lines += _table(shown, columns)
            lines += [*textwrap.wrap(note, _WIDTH), ""]
    lines += [*_references(references), *_incomplete(outcomes)]
    return "\n".join(lines).rstrip()


def _prompts(outcomes: Sequence[Outcome]) -> str:
    counts = {len({answer.prompt for answer in outcome.answers}) for outcome in outcomes}
    if len(counts) > 1:
        return ""
    (count,) = counts
    return f", {count} prompt{'' if count == 1 else 's'}"


def _table(outcomes: Sequence[Outcome], columns: Sequence[_Column]) -> Iterator[str]:
    yield f"{'RTT ms':>6}  {'mode':<12}" + "".join(f"{name:>{width}}" for name, width, _ in columns)
    for outcome in outcomes:
        for row, figures in enumerate(outcome.modes):
            rtt = f"{outcome.condition.net.rtt_ms:g}" if row == 0 else ""
            name = f"{figures.mode} {figures.variant}".strip()
            yield f"{rtt:>6}  {name:<12}" + "".join(f"{cell(figures):>{width}}" for _, width, cell in columns)


def _span(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}"


def _of_pair(first: float, second: float) -> str:
    return f"{first:.0f} / {second:.0f}"


def _or_dash(value: float | None, places: int = 2) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _at(position: int) -> Callable[[Figures], str]:
    def cell(figures: Figures) -> str:
        shares = figures.accepted_by_position
        return "-" if not shares else f"{shares[position - 1] if position <= len(shares) else 0.0:.2f}"

    return cell


_SPEED: tuple[_Column, ...] = (
    ("tokens/s", 10, lambda it: f"{it.tokens_per_second:.1f}"),
    ("ratio", 8, lambda it: f"{it.ratio.middle:.2f}x"),
    ("quartiles", 15, lambda it: _span(it.ratio.low_quartile, it.ratio.high_quartile)),
    ("least to most", 15, lambda it: _span(it.ratio.least, it.ratio.most)),
    ("predicted", 11, lambda it: "-" if it.predicted is None else f"{it.predicted:.2f}x"),
    ("reached", 9, lambda it: "-" if it.reached is None else f"{it.reached:.0%}"),
)
_COST: tuple[_Column, ...] = (
    ("TTFT", 7, lambda it: f"{it.ttft_ms:.0f}"),
    ("TPOT", 7, lambda it: f"{it.tpot_ms:.1f}"),
    ("ITL p50", 9, lambda it: f"{it.itl_ms['p50']:.0f}"),
    ("p95", 6, lambda it: f"{it.itl_ms['p95']:.0f}"),
    ("p99", 6, lambda it: f"{it.itl_ms['p99']:.0f}"),
    ("passes", 9, lambda it: f"{it.target_passes_per_token:.2f}"),
    ("accepted", 10, lambda it: _or_dash(it.acceptance_rate)),
    ("bytes up/down", 15, lambda it: _of_pair(it.bytes_up_per_token, it.bytes_down_per_token)),
    ("CPU ms", 9, lambda it: f"{it.cpu_ms_per_token:.1f}"),
)
_ROUND: tuple[_Column, ...] = (
    ("round", 8, lambda it: f"{it.round.lasted:.1f}"),
    ("draft", 8, lambda it: f"{it.round.draft:.1f}"),
    ("wire", 8, lambda it: _or_dash(it.round.wire, 1)),
    ("queue", 8, lambda it: f"{it.round.queue:.1f}"),
    ("target", 8, lambda it: f"{it.round.target:.1f}"),
    *((f"+{position}", 6, _at(position)) for position in _POSITIONS),
)
_TABLES: tuple[tuple[str, tuple[_Column, ...], str], ...] = (
    (
        "Speed",
        _SPEED,
        "Ratio: speed over cloud-only, geometric mean over the prompts, then its spread. Predicted: from the step, "
        "draft time and round trip measured here, and where the draft is right. Reached: the share of that.",
    ),
    (
        "Latency and cost",
        _COST,
        "Milliseconds. TTFT: to the first token; TPOT: a token; ITL: from commit to commit. For a committed token: "
        "target passes, bytes, device CPU of drafting. Accepted: share of the draft tokens tested.",
    ),
    (
        "Where a round goes",
        _ROUND,
        "Milliseconds from commit to commit, and means of its parts, which overlap except in serial mode. +N: share "
        "of the rounds with a draft in which at least N of its tokens were accepted.",
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
    yield from textwrap.wrap(f"Assistant: {references[0]['assistant']}.", _WIDTH)
    yield ""


def _incomplete(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.failure is not None:
            yield f"Failed: {outcome.condition}: {outcome.failure}"
        elif not outcome.complete:
            done = len({(answer.prompt, answer.repeat) for answer in outcome.answers})
            yield f"Interrupted: {outcome.condition}, after {done} prompt{'' if done == 1 else 's'}"
