from __future__ import annotations

import pytest
from draftwire.cloud_verifier.engine.step_model import StepModel

SIZES = (1, 4, 2, 9, 1, 6, 3, 1, 12, 5)


def line(tokens: int, *, slope: float = 0.001) -> float:
    return 0.028 + slope * tokens


def learned(*, sizes: tuple[int, ...] = SIZES, slope: float = 0.001) -> StepModel:
    model = StepModel()
    for tokens in sizes * 8:
        model.record(tokens, line(tokens, slope=slope))
    return model


def predicted(model: StepModel, tokens: int) -> float:
    seconds = model.predict(tokens)
    assert seconds is not None
    return seconds


def test_nothing_is_known_at_first() -> None:
    assert StepModel().predict(1) is None


def test_one_step_gives_a_first_guess_that_grows_with_size() -> None:
    model = StepModel()
    model.record(1, 0.03)
    assert predicted(model, 1) == pytest.approx(0.03)
    assert 0.03 < predicted(model, 2) < 0.033


@pytest.mark.parametrize("slope", [0.0, 0.0006, 0.0035])
@pytest.mark.parametrize("tokens", [1, 5, 16])
def test_a_line_is_found(slope: float, tokens: int) -> None:
    assert predicted(learned(slope=slope), tokens) == pytest.approx(line(tokens, slope=slope), rel=0.02)


def test_one_size_alone_says_nothing_wild_about_others() -> None:
    model = learned(sizes=(1,))
    assert predicted(model, 1) == pytest.approx(line(1))
    assert line(1) < predicted(model, 17) < 2 * line(1)


def test_a_step_that_was_late_by_accident_hardly_counts() -> None:
    model = learned()
    model.record(4, 1.0)
    assert predicted(model, 1) == pytest.approx(line(1), rel=0.03)
    assert predicted(model, 16) == pytest.approx(line(16), rel=0.05)


def test_late_steps_now_and_then_do_not_add_up() -> None:
    model = StepModel()
    for count in range(200):
        tokens = SIZES[count % len(SIZES)]
        model.record(tokens, line(tokens) * (10 if count % 10 == 7 else 1))
    assert predicted(model, 1) == pytest.approx(line(1), rel=0.1)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_lasting_change_is_followed(factor: float) -> None:
    model = learned()
    for count in range(150):
        tokens = SIZES[count % len(SIZES)]
        model.record(tokens, factor * line(tokens))
    assert predicted(model, 1) == pytest.approx(factor * line(1), rel=0.1)


def test_a_token_more_never_costs_less_than_nothing_nor_more_than_an_average_one() -> None:
    faster_when_full, steep = StepModel(), StepModel()
    for _ in range(20):
        faster_when_full.record(1, 0.05)
        faster_when_full.record(9, 0.01)
        steep.record(2, 0.001)
        steep.record(9, 0.1)
    assert predicted(faster_when_full, 1) == pytest.approx(predicted(faster_when_full, 9))
    assert predicted(steep, 1) > 0


def test_a_clock_too_coarse_for_a_step_is_no_trap() -> None:
    model = StepModel()
    model.record(1, 0.0)
    for _ in range(60):
        model.record(1, 0.03)
    assert predicted(model, 1) == pytest.approx(0.03, rel=0.2)
