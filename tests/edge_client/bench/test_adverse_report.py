from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from draftwire.edge_client.bench.adverse_outcome import AdverseOutcome
from draftwire.edge_client.bench.adverse_report import adverse_report, verdict
from draftwire.edge_client.bench.adversities import ADVERSITIES, Adversity
from draftwire.edge_client.bench.measure import Answer
from draftwire.edge_client.bench.modes import parse_modes
from draftwire.edge_client.bench.outcome import Collected

Maker = Callable[..., Answer]
USELESS, SLOW, *_ = ADVERSITIES

GOLDEN = """\
Target T, draft D

Drafting under adverse conditions

                        speed                                         first-token  drafted    bytes
condition     tokens/s  ratio    quartiles  least to most     TTFT ms       ratio   /token   /token
useless    25.0 / 25.0  1.00x            -              -   100 / 120       1.20x     1.20     20/8
slow       25.0 / 20.0  0.80x            -              -   100 / 100       1.00x     1.20     20/8
Of pairs: cloud-only, then with a draft. Speed ratio: of tokens/s, geometric mean over the prompts,
then its spread. First-token ratio: of TTFT, the time to the first token, median over the pairs. For
each committed token with a draft: tokens drafted on the device, bytes up/down.

useless:  the draft proposes random tokens and is sure of them
slow:     a drafted token takes two steps of the target

Failed: far: the verifier left
Interrupted: slow, after 2 pairs of answers
Under 0.97x: slow (0.800x). First token over 1.05x: none; perhaps: useless (1.200x, not sure: 1.00
to 1.40 holds 1.05)."""


@pytest.fixture
def adverse(plain: Maker, drafted: Maker) -> Callable[..., AdverseOutcome]:
    """Makes the outcome of one pair whose speed counts, and one short pair."""

    def make(adversity: Adversity, *, tokens_per_second: float, late: float = 0.0, complete: bool = True):  # type: ignore[no-untyped-def]
        first = 0.1 + late
        stats = replace(drafted().stats, ttft_seconds=first, total_seconds=first + 4 / tokens_per_second)
        pair, short = [plain(), replace(drafted(), stats=stats)], [drafted(), plain()]
        modes = parse_modes(["draftwire"])
        collected = Collected(answers=pair, rtt=0.02, complete=complete)
        return AdverseOutcome.of(adversity, modes, collected, short=short, prompt_tokens={"chat-1": 40})

    return make


def test_the_table(adverse: Callable[..., AdverseOutcome]) -> None:
    shown = [
        adverse(USELESS, tokens_per_second=25, late=0.04),
        AdverseOutcome.of(ADVERSITIES[2], [], Collected(failure="the verifier left")),
        adverse(SLOW, tokens_per_second=20, complete=False),
    ]
    assert adverse_report(shown, heading="Target T, draft D") == GOLDEN
    assert max(map(len, GOLDEN.splitlines())) <= 100


def test_all_within_bounds_is_told(adverse: Callable[..., AdverseOutcome]) -> None:
    text = adverse_report([adverse(USELESS, tokens_per_second=24.5)])
    assert text.endswith("\nUnder 0.97x: none. First token over 1.05x: none.")


def test_where_the_interval_holds_the_bound_nobody_is_sure(plain: Maker, drafted: Maker) -> None:
    def first_token_after(*ratios: float) -> AdverseOutcome:
        pairs = [
            (plain(), replace(drafted(), stats=replace(drafted().stats, ttft_seconds=0.1 * ratio, total_seconds=0.5)))
            for ratio in ratios
        ]
        answers = [answer for pair in pairs for answer in pair]
        return AdverseOutcome.of(SLOW, parse_modes(["draftwire"]), Collected(answers=answers[:2]), short=answers[2:])

    assert "over 1.05x: slow (1.300x, 95% interval 1.20 to 1.40)." in verdict([first_token_after(1.2, 1.4)])
    assert "over 1.05x: none; perhaps: slow (1.530x, not sure: 1.02 to 2.04 holds 1.05)." in verdict(
        [first_token_after(1.02, 2.04)]
    )
    assert "over 1.05x: none; perhaps: slow (1.020x, " in verdict([first_token_after(0.9, 1.14)])


def test_nothing_is_no_text() -> None:
    assert adverse_report([]) == ""


@pytest.mark.parametrize(("speed", "late", "within"), [(24.5, 0.0, (True, True)), (20, 0.04, (False, False))])
def test_json_tells_of_each_figure_whether_it_is_within(
    adverse: Callable[..., AdverseOutcome], speed: float, late: float, within: tuple[bool, bool]
) -> None:
    content = json.loads(json.dumps(adverse(SLOW, tokens_per_second=speed, late=late).to_dict()))
    assert (content["speed"]["within"], content["first_token"]["within"]) == within
    assert content["first_token"]["sure"] is (late == 0)
    assert content["speed"]["middle"] == pytest.approx(speed / 25)
    assert content["name"] == "slow"
    assert content["rtt_ms"] == 20
    assert content["prompt_tokens"] == {"chat-1": 40}
    assert [mode["mode"] for mode in content["modes"]] == ["cloud_only", "draftwire"]
    assert [mode["answers"] for mode in content["modes"]] == [1, 1]
    assert (content["first_token"]["pairs"], len(content["answers"])) == (2, 4)


def test_one_that_failed_at_once_has_no_figures() -> None:
    failed = AdverseOutcome.of(SLOW, [], Collected(failure="no"))
    content = failed.to_dict()
    assert (content["failure"], content["speed"], content["first_token"]) == ("no", None, None)
    assert not failed.slow
    assert not failed.late
