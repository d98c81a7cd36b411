"""The chart of speed over round trip; the door to matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from ...protocol.errors import InvalidParameterError, MissingDependencyError
from .mode_result import ModeResult
from .modes import CLOUD_ONLY
from .outcome import Outcome

__all__ = ["check_drawable", "draw"]

_PANEL_WIDTH, _HEIGHT = 5.5, 4.5  # inches
_DOTS_PER_INCH = 120
_ROOM_ABOVE = 1.08  # no mark lies on the frame


def check_drawable() -> None:
    """Find out before anything is measured whether a chart can be drawn.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    _new_figure(panels=1)


def draw(outcomes: Sequence[Outcome]) -> bytes:
    """A PNG: ratio to cloud-only over RTT, one panel a temperature, one line a mode.

    The spread over the prompts is shaded from quartile to quartile; the prediction is dashed.

    Raises:
        InvalidParameterError: there is nothing to draw.
        MissingDependencyError: matplotlib is not installed.
    """
    shown = [outcome for outcome in outcomes if outcome.modes]
    if not shown:
        raise InvalidParameterError("--plot", "has nothing to draw: no condition was measured")
    temperatures = list(dict.fromkeys(outcome.condition.temperature for outcome in shown))
    figure = _new_figure(panels=len(temperatures))
    panels = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
    for panel, temperature in zip(panels, temperatures, strict=True):
        _draw_panel(panel, [each for each in shown if each.condition.temperature == temperature])
        panel.set_title(f"temperature {temperature:g}")
    panels[0].set_ylim(0, _ROOM_ABOVE * max(_heights(shown)))  # of all panels, which share it
    panels[0].set_ylabel("speed over cloud-only")
    panels[0].plot([], [], color="0.4", linestyle="--", linewidth=1, marker="x", markersize=4, label="predicted")
    panels[0].legend(loc="best", fontsize="small")
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _heights(outcomes: Sequence[Outcome]) -> Iterator[float]:
    yield 1.0
    for result in (result for outcome in outcomes for result in outcome.modes):
        yield from (result.ratio.middle, result.ratio.high_quartile, result.predicted or 0.0)


def _draw_panel(panel: Any, outcomes: Sequence[Outcome]) -> None:
    outcomes = sorted(outcomes, key=lambda outcome: outcome.condition.net.rtt_ms)
    panel.axhline(1.0, color="0.4", linewidth=1, label="cloud-only")
    modes = list(dict.fromkeys(result.mode for outcome in outcomes for result in outcome.modes))
    for number, mode in enumerate(name for name in modes if name != CLOUD_ONLY):
        points = [
            (outcome.condition.net.rtt_ms, result)
            for outcome in outcomes
            for result in outcome.modes
            if result.mode == mode
        ]
        _draw_mode(panel, mode, points, color=f"C{number}")
    trips = sorted({outcome.condition.net.rtt_ms for outcome in outcomes})
    if len(trips) > 1:
        panel.set_xscale("symlog", linthresh=10)  # a round trip may be 0
    panel.set_xticks(trips, [f"{trip:g}" for trip in trips])
    panel.minorticks_off()
    panel.set_xlabel("round trip, ms")
    panel.grid(alpha=0.3)


def _draw_mode(panel: Any, mode: str, points: Sequence[tuple[float, ModeResult]], *, color: str) -> None:
    trips = [trip for trip, _ in points]
    ratios = [result.ratio for _, result in points]
    panel.plot(trips, [ratio.middle for ratio in ratios], color=color, marker="o", markersize=4, label=mode)
    panel.fill_between(
        trips,
        [ratio.low_quartile for ratio in ratios],
        [ratio.high_quartile for ratio in ratios],
        color=color,
        alpha=0.15,
        linewidth=0,
    )
    predicted = [(trip, result.predicted) for trip, result in points if result.predicted is not None]
    panel.plot(
        [trip for trip, _ in predicted],
        [ratio for _, ratio in predicted],
        color=color,
        linestyle="--",
        linewidth=1,
        marker="x",
        markersize=4,
    )


def _new_figure(*, panels: int) -> Any:
    """A figure with the Agg canvas: without pyplot it needs no screen, and leaves no global state behind."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            'matplotlib is not installed, and charts need it; run: pip install "draftwire[bench]"'
        ) from error
    figure = Figure(figsize=(_PANEL_WIDTH * panels, _HEIGHT), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure
