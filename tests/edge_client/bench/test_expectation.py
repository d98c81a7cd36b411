from __future__ import annotations

from collections.abc import Callable

import pytest
from draftwire.edge_client.bench.expectation import Measured, measured_parts, predicted_ratio
from draftwire.edge_client.bench.measure import Answer
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.prediction import speedup

Maker = Callable[..., Answer]
MEASURED = Measured(step=0.03, slope=0.05, draft=0.01, rtt=0.05)
RIGHTS = {"chat-1": [True, False] * 20, "code-1": [True] * 30}


def test_the_parts_are_read_off_the_answers(plain: Maker, drafted: Maker) -> None:
    parts = measured_parts([plain()], [drafted()], rtt=0.05)
    assert parts is not None
    assert parts.step == pytest.approx(0.03)
    assert parts.draft == pytest.approx(0.01)
    # Two steps of 33 ms beside plain ones of 30 ms: a fifth of a step more in all, for four draft tokens tested.
    assert parts.slope == pytest.approx(0.2 / 4)


def test_without_a_draft_there_is_nothing_to_predict_from(plain: Maker) -> None:
    assert measured_parts([plain()], [], rtt=0.05) is None
    assert measured_parts([], [plain(mode="draftwire")], rtt=0.05) is None


@pytest.mark.parametrize(
    ("name", "discipline", "lengths"),
    [("draftwire", "run_ahead", None), ("pipelined", "waiting", None), ("serial", "serial", [3])],
)
def test_each_mode_is_predicted_in_its_own_way(name: str, discipline: str, lengths: list[int] | None) -> None:
    mode = parse_modes([name])[-1]
    options = {"mode": discipline, "step": 0.03, "slope": 0.05, "draft": 0.01, "rtt": 0.05, "serial_lengths": lengths}
    each = [speedup(right, **options) for right in RIGHTS.values()]  # type: ignore[arg-type]
    found = predicted_ratio(mode, mode.variants[0], MEASURED, RIGHTS)
    assert found == pytest.approx((each[0] * each[1]) ** 0.5)


def test_cloud_only_and_unknown_texts_are_not_predicted() -> None:
    alone, draftwire = parse_modes(["draftwire"])
    assert predicted_ratio(alone, alone.variants[0], MEASURED, RIGHTS) is None
    assert predicted_ratio(draftwire, draftwire.variants[0], MEASURED, {}) is None
