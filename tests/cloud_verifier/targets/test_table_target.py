from __future__ import annotations

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block, OutOfKvMemoryError, Target
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.fingerprint import vocabulary_fingerprint
from tokenizers import Tokenizer


@pytest.mark.parametrize("size", [2, 8, 64, 200])
def test_its_tokenizer_is_a_real_one(size: int) -> None:
    target = TableTarget(vocabulary_size=size)
    parsed = Tokenizer.from_str(target.tokenizer_json)
    assert parsed.get_vocab_size() == size
    ids = list(range(1, size))
    text = parsed.decode(ids)
    assert len(text) == size - 1
    assert parsed.encode(text).ids == ids
    assert parsed.decode([1, 0]) == "a"
    special = [token.content for token in parsed.get_added_tokens_decoder().values() if token.special]
    assert target.info.fingerprint == vocabulary_fingerprint(parsed.get_vocab(with_added_tokens=True), special)


def test_logits_depend_on_the_last_two_tokens_only() -> None:
    target: Target = TableTarget(vocabulary_size=8, seed=3)
    target.open(1, 50)
    target.open(2, 50)
    first, second = target.step([Block(1, 0, [1, 2, 3, 4], rows=4), Block(2, 0, [6, 3, 4], rows=2)])
    assert first.shape == (4, 8)
    assert first.dtype == np.float32
    assert np.array_equal(first[-1], second[-1])
    assert not np.array_equal(first[-2], second[-2])
    assert np.array_equal(first[2], TableTarget(vocabulary_size=8, seed=3).logits_after([1, 2, 3]))
    assert not np.array_equal(first[2], TableTarget(vocabulary_size=8, seed=4).logits_after([1, 2, 3]))


def test_rollback_and_what_was_saved_change_what_is_held() -> None:
    target = TableTarget()
    target.open(1, 50)
    target.step([Block(1, 0, [1, 2, 3, 4])])
    target.rollback(1, 2)
    saved = target.save(1, 0, 1)
    target.close(1)
    target.open(2, 60)
    target.restore(2, [saved])
    assert (target.length(2), target.kv_bytes) == (1, 2)
    (row,) = target.step([Block(2, 1, [9])])
    assert np.array_equal(row[0], target.logits_after([1, 9]))
    target.close(2)
    with pytest.raises(InvalidParameterError, match="not open"):
        target.length(2)


def test_room_once_given_is_the_streams_until_it_is_closed() -> None:
    target = TableTarget(kv_budget=50)
    target.open(1, 60, room=30)
    assert target.kv_bytes == 30
    assert (target.fits(20), target.fits(21)) == (True, False)
    with pytest.raises(OutOfKvMemoryError):
        target.open(2, 60, room=21)
    target.open(2, 60, room=10)
    target.step([Block(1, 0, [1] * 40)])
    target.rollback(1, 5)
    assert target.kv_bytes == 50
    with pytest.raises(OutOfKvMemoryError):
        target.step([Block(1, 5, [1]), Block(2, 0, [1] * 11)])
    assert (target.length(1), target.length(2)) == (5, 0)
    target.close(1)
    target.step([Block(2, 0, [1] * 10)])
    target.save(2, 0, 5)
    assert target.kv_bytes == 15
    assert (target.fits(40), target.fits(41)) == (True, False), "what was saved can be forgotten"


def test_eos_bias_and_padding() -> None:
    target = TableTarget(vocabulary_size=12, eos_bias=-np.inf, padding=5)
    assert (target.info.vocabulary_size, target.info.logits_size, target.info.eos_ids) == (12, 17, (0,))
    assert target.logits_after([3])[0] == -np.inf
    assert np.isfinite(target.logits_after([3])[1:]).all()


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (Block(1, 2, [5]), "start"),
        (Block(1, 3, []), "rows"),
        (Block(1, 3, [1], rows=2), "rows"),
        (Block(1, 3, [1] * 8), "capacity"),
        (Block(1, 3, [16]), "tokens"),
        (Block(1, 3, [-1]), "tokens"),
        (Block(8, 0, [1]), "stream"),
        (Block(2, 0, [1]), "stream"),
    ],
)
def test_misuse_is_refused_before_anything_changes(block: Block, field: str) -> None:
    target = TableTarget()
    target.open(1, 10)
    target.open(2, 10)
    target.step([Block(1, 0, [1, 2, 3])])
    with pytest.raises(InvalidParameterError) as caught:
        target.step([Block(2, 0, [1]), block])
    assert caught.value.field == field
    assert (target.length(1), target.length(2)) == (3, 0)


def test_bad_lives_are_refused() -> None:
    target = TableTarget()
    target.open(1, 10)
    target.step([Block(1, 0, [1, 2, 3])])
    for call in (
        lambda: target.open(1, 10),
        lambda: target.open(2, 0),
        lambda: target.open(2, 5000),
        lambda: target.rollback(1, 4),
        lambda: target.rollback(1, -1),
        lambda: target.save(1, 0, 4),
        lambda: target.save(1, 2, 2),
        lambda: target.save(7, 0, 1),
        lambda: target.restore(7, []),
        lambda: target.restore(1, [target.save(1, 0, 3)] * 3),
        lambda: target.close(7),
        lambda: TableTarget(vocabulary_size=1),
    ):
        with pytest.raises(InvalidParameterError):
            call()
    assert target.length(1) == 3
