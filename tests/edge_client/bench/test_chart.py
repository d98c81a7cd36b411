from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from draftwire.edge_client.bench.chart import check_drawable, draw
from draftwire.edge_client.bench.outcome import Outcome
from draftwire.protocol.errors import InvalidParameterError, MissingDependencyError

OutcomeMaker = Callable[..., Outcome]


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height in pixels, from the header."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def test_one_panel_a_temperature(outcome: OutcomeMaker, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    one = [outcome(rtt_ms=rtt) for rtt in (100, 0, 20)]
    draw(one, tmp_path / "one.png")
    draw([*one, *(outcome(rtt_ms=rtt, temperature=0.7) for rtt in (0, 20))], tmp_path / "two.png")
    width, height = size_of((tmp_path / "one.png").read_bytes())
    assert size_of((tmp_path / "two.png").read_bytes()) == (2 * width, height)


def test_what_cannot_be_drawn_or_written(outcome: OutcomeMaker, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InvalidParameterError, match="nothing to draw"):
        draw([Outcome(condition=outcome().condition, failure="broken")], tmp_path / "none.png")
    with pytest.raises(InvalidParameterError, match="cannot be written"):
        draw([outcome()], tmp_path / "absent" / "chart.png")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"draftwire\[bench\]"):
        check_drawable()
