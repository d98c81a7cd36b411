from __future__ import annotations

import itertools

from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.path import Path
from hypothesis import given
from hypothesis import strategies as st


def path_of(start: int, *tokens: int) -> Path:
    return Path(1, start, [Proposal(token) for token in tokens])


def tokens_beyond(path: Path, position: int) -> list[int]:
    return [proposal.token for proposal in path.beyond(position)]


def test_a_path_says_what_lies_beyond_a_position() -> None:
    path = path_of(10, 5, 6, 7)
    assert path.end == 13
    assert tokens_beyond(path, 10) == [5, 6, 7]
    assert tokens_beyond(path, 12) == [7]
    assert tokens_beyond(path, 13) == tokens_beyond(path, 20) == []


def test_a_path_that_starts_later_says_nothing_yet() -> None:
    assert path_of(10, 5).beyond(9) == []


def test_agreement_keeps_it_alive() -> None:
    path = path_of(10, 5, 6, 7)
    assert path.settle(8, [1, 2, 5, 6])
    assert tokens_beyond(path, 12) == [7]
    assert path.settle(12, [7, 8, 9])  # it says nothing about 8 and 9
    assert path.alive


def test_tokens_wholly_outside_do_not_matter() -> None:
    path = path_of(10, 5, 6)
    assert path.settle(3, [9, 9])
    assert path.settle(12, [9])
    assert path.settle(11, [])


def test_disagreement_is_for_good() -> None:
    path = path_of(10, 5, 6, 7)
    assert not path.settle(10, [5, 0])
    assert path.beyond(10) == []
    path.proposals.append(Proposal(8))
    assert not path.settle(10, [5, 6])
    assert path.beyond(12) == []


@given(
    start=st.integers(1, 6),
    proposed=st.lists(st.integers(0, 2), max_size=8),
    sequence=st.lists(st.integers(0, 2), min_size=1, max_size=14),
    cuts=st.lists(st.integers(0, 14), max_size=5),
)
def test_it_lives_exactly_while_the_sequence_agrees(
    start: int, proposed: list[int], sequence: list[int], cuts: list[int]
) -> None:
    """Whatever pieces the committed tokens come in."""
    path = path_of(start, *proposed)
    edges = sorted({0, len(sequence), *(min(cut, len(sequence)) for cut in cuts)})
    for low, high in itertools.pairwise(edges):
        path.settle(low, sequence[low:high])
    overlap = min(len(proposed), max(0, len(sequence) - start))
    agrees = proposed[:overlap] == sequence[start : start + overlap]
    assert path.alive is agrees
    if len(sequence) >= start:
        assert tokens_beyond(path, len(sequence)) == (proposed[overlap:] if agrees else [])
