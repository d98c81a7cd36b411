from __future__ import annotations

from collections.abc import Sequence

import pytest
from draftwire.cloud_verifier.engine.prefix_cache import BLOCK_TOKENS, PrefixCache
from draftwire.cloud_verifier.targets.table_target import SavedTokens, TableTarget
from draftwire.cloud_verifier.targets.target import Block
from hypothesis import given, settings
from hypothesis import strategies as st

V = 8
A, B, C = ([token] * BLOCK_TOKENS for token in (1, 2, 3))


class Rig:
    """A cache over a table target, and texts put into slots of it."""

    def __init__(self, *, most_tokens: int = 10_000, budget: int | None = None) -> None:
        self.target = TableTarget(vocabulary_size=V, kv_budget=budget)
        self.cache = PrefixCache(self.target, most_tokens=most_tokens)
        self._slots = 0

    def keep(self, tokens: Sequence[int], *, scope: str = "") -> None:
        self._slots += 1
        self.target.open(self._slots, len(tokens))
        self.target.step([Block(self._slots, 0, list(tokens))])
        self.cache.keep(scope, self._slots, tokens)
        self.target.close(self._slots)

    def found(self, tokens: Sequence[int], *, scope: str = "") -> list[int]:
        blocks = self.cache.match(scope, tokens)
        return [token for block in blocks if isinstance(block, SavedTokens) for token in block.tokens]


def test_a_text_finds_the_longest_start_that_is_held_in_whole_blocks() -> None:
    rig = Rig()
    rig.keep([*A, *B, 5, 5])
    assert rig.found([*A, *B, *C]) == [*A, *B]
    assert rig.found([*A, *C]) == A
    assert rig.found([*A, *B[:-1]]) == A
    assert rig.found([*B, *A]) == []
    assert rig.found(A[:-1]) == []


def test_what_texts_share_is_held_once() -> None:
    rig = Rig()
    rig.keep([*A, *B])
    rig.keep([*A, *B])
    rig.keep([*A, *C])
    assert rig.cache.tokens == 3 * BLOCK_TOKENS == rig.target.kv_bytes
    assert rig.found([*A, *B]) == [*A, *B]
    assert rig.found([*A, *C]) == [*A, *C]


def test_the_same_block_after_another_text_is_another_block() -> None:
    rig = Rig()
    rig.keep([*A, *C])
    rig.keep([*B, *C])
    assert rig.cache.tokens == 4 * BLOCK_TOKENS


def test_scopes_do_not_see_each_other() -> None:
    rig = Rig()
    rig.keep(A, scope="one")
    assert rig.found(A, scope="two") == []
    assert rig.found(A, scope="one") == A


def test_what_was_used_longest_ago_goes_first_and_never_a_block_with_others_after_it() -> None:
    rig = Rig(most_tokens=3 * BLOCK_TOKENS)
    rig.keep([*A, *B])
    rig.keep(C)
    assert rig.found([*A, *B]) == [*A, *B]  # used now
    rig.keep([*A, *A])  # C goes
    assert rig.found(C) == []
    rig.keep([*B])  # the end of one of the two chains goes, and not what both begin with
    assert rig.found(A) == A
    assert rig.cache.tokens == 3 * BLOCK_TOKENS


def test_a_text_too_long_for_the_bound_is_held_as_far_as_it_goes() -> None:
    rig = Rig(most_tokens=2 * BLOCK_TOKENS)
    rig.keep([*A, *B, *C])
    assert rig.found([*A, *B, *C]) == [*A, *B]


def test_the_targets_memory_bounds_it_too() -> None:
    rig = Rig(budget=5 * BLOCK_TOKENS)
    rig.keep([*A, *B])
    rig.keep([*C, *C])  # its slot takes two blocks' room, and one block is left beside what is held
    assert rig.target.kv_bytes <= 5 * BLOCK_TOKENS
    assert rig.found([*C, *C]) == [*C, *C]
    rig.cache.clear()
    assert (rig.cache.tokens, rig.target.kv_bytes) == (0, 0)
    assert not rig.cache.evict()


def test_none_is_none() -> None:
    rig = Rig(most_tokens=0)
    rig.keep([*A, *B])
    assert rig.cache.tokens == rig.target.kv_bytes == 0


@given(
    texts=st.lists(st.lists(st.sampled_from([1, 2]), max_size=5), max_size=12),
    most=st.integers(0, 8),
    looked_for=st.lists(st.sampled_from([1, 2]), max_size=6),
)
@settings(deadline=None)
def test_it_never_finds_what_was_not_kept_and_keeps_its_bound(
    texts: list[list[int]], most: int, looked_for: list[int]
) -> None:
    rig = Rig(most_tokens=most * BLOCK_TOKENS)
    spelled = [[token for token in text for _ in range(BLOCK_TOKENS)] for text in texts]
    for text in filter(None, spelled):
        rig.keep(text)
        assert rig.cache.tokens <= most * BLOCK_TOKENS
        assert rig.target.kv_bytes == rig.cache.tokens
    wanted = [token for token in looked_for for _ in range(BLOCK_TOKENS)]
    found = rig.found(wanted)
    assert wanted[: len(found)] == found
    assert not found or any(text[: len(found)] == found for text in spelled)
    if most == 8 and sum(map(len, texts)) <= 8:
        longest = max((_shared(wanted, text) for text in spelled), default=0)
        assert len(found) == longest // BLOCK_TOKENS * BLOCK_TOKENS


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    for index, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return index
    return min(len(one), len(other))


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_restored_slot_goes_on_as_if_it_had_computed(blocks: int) -> None:
    rig = Rig()
    text = [*A, *B, *C]
    rig.keep(text)
    rig.target.open(99, 100)
    rig.target.restore(99, rig.cache.match("", text)[:blocks])
    length = blocks * BLOCK_TOKENS
    (rows,) = rig.target.step([Block(99, length, [4])])
    assert (rows[0] == rig.target.logits_after([*text[:length], 4])).all()
