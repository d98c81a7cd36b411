from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from draftwire.edge_client.bench.chart import check_drawable, draw
from draftwire.edge_client.bench.outcome import Outcome
from draftwire.edge_client.bench.spread import Spread
from draftwire.protocol.errors import InvalidParameterError, MissingDependencyError

OutcomeMaker = Callable[..., Outcome]


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the header."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_one_panel_a_temperature(outcome: OutcomeMaker) -> None:
    pytest.importorskip("matplotlib")
    one = [outcome(rtt_ms=rtt) for rtt in (100, 0, 20)]
    width, height = size_of(draw(one))
    two = draw([*one, *(outcome(rtt_ms=rtt, temperature=0.7) for rtt in (0, 20))])
    assert size_of(two) == (2 * width, height)


def test_no_mark_lies_on_the_frame(outcome: OutcomeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    slow, fast = outcome(rtt_ms=20), outcome(rtt_ms=20, temperature=0.7)
    modes = [replace(result, ratio=Spread.of([3.0, 5.0])) for result in fast.modes]
    draw([slow, replace(fast, modes=tuple(modes))])
    for panel in drawn[0].axes:
        bottom, top = panel.get_ylim()
        marks = [float(height) for line in panel.lines for height in line.get_ydata()]
        assert bottom == 0
        assert max(marks) < top
    assert top > 4.5  # the upper quartile, which is shaded


def test_nothing_to_draw(outcome: OutcomeMaker) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidParameterError, match="nothing to draw"):
        draw([Outcome(condition=outcome().condition, failure="broken")])


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"draftwire\[bench\]"):
        check_drawable()
