"""Instruments against the plainest way to count."""

from __future__ import annotations

from draftwire.cloud_verifier.operations.instruments import Counts, Distribution, Family, Kind, Lengths
from hypothesis import given
from hypothesis import strategies as st

BOUNDS = (0.1, 1.0, 2.5)


def family(*labels: str, bounds: tuple[float, ...] = ()) -> Family:
    return Family(name="x", kind=Kind.COUNTER, help="X.", labels=labels, bounds=bounds)


def test_known_labels_are_there_as_zero() -> None:
    counts = Counts(family("a"), [("yes",)])
    counts.add(2, "no")
    assert counts.values() == {("yes",): 0, ("no",): 2}


@given(st.lists(st.tuples(st.integers(0, 20), st.sampled_from(["on", "off"]))))
def test_positions_count_the_runs_that_reached_them(runs: list[tuple[int, str]]) -> None:
    lengths = Lengths(family("speculation", "position"), ["on", "off"])
    for length, label in runs:
        lengths.add(length, label)
    values = lengths.values()
    for position in range(21):
        for label in ("on", "off"):
            reached = sum(length > position for length, of in runs if of == label)
            assert values.get((label, str(position)), 0) == reached
    assert sum(values.values()) == sum(length for length, _ in runs)


@given(st.lists(st.floats(0, 10) | st.sampled_from(BOUNDS)))
def test_a_value_is_in_the_first_bucket_that_holds_it(values: list[float]) -> None:
    distribution = Distribution(family(bounds=BOUNDS))
    for value in values:
        distribution.add(value)
    spread = distribution.values()[()]
    cumulative = [sum(value <= bound for value in values) for bound in BOUNDS] + [len(values)]
    assert [sum(spread.buckets[: index + 1]) for index in range(4)] == cumulative
    assert spread.total == sum(values)


def test_what_was_read_does_not_change() -> None:
    distribution = Distribution(family(bounds=BOUNDS))
    before = distribution.values()[()]
    distribution.add(0.5)
    assert sum(before.buckets) == 0
