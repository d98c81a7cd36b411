from __future__ import annotations

import numpy as np
import pytest
import torch
from draftwire.cloud_verifier.targets.kv_cache import KvCache
from draftwire.cloud_verifier.targets.ragged_batch import RaggedBatch
from draftwire.cloud_verifier.targets.slot_pool import LayerShape
from draftwire.cloud_verifier.targets.target import Block

CPU = torch.device("cpu")


@pytest.fixture
def cache() -> KvCache:
    cache = KvCache([LayerShape(2, 4, 4, None)], max_length=4096, dtype=torch.float32, device=CPU)
    for stream in range(64):
        cache.open(stream, 4096)
    return cache


def at(cache: KvCache, stream: int, start: int, count: int, rows: int = 1) -> Block:
    cache.reserve(stream, start + count)
    return Block(stream, start, [stream] * count, rows=rows)


def test_tokens_positions_and_rows_are_packed_in_order(cache: KvCache) -> None:
    batch = RaggedBatch([at(cache, 3, 10, 2, rows=2), at(cache, 0, 0, 3), at(cache, 1, 7, 1)], cache, CPU)
    assert batch.token_ids.tolist() == [3, 3, 0, 0, 0, 1]
    assert batch.positions.tolist() == [10, 11, 0, 1, 2, 7]
    assert batch.logit_rows.tolist() == [0, 1, 4, 5]


def test_neighbouring_single_tokens_are_one_run_without_shuffling(cache: KvCache) -> None:
    batch = RaggedBatch([at(cache, stream, 100, 1) for stream in range(16)], cache, CPU)
    (run,) = batch.runs
    assert (run.first, run.slots, run.width, run.scatter) == (0, 16, 1, None)


def test_one_active_stream_of_many_reads_its_own_slot_only(cache: KvCache) -> None:
    (run,) = RaggedBatch([at(cache, 40, 100, 1)], cache, CPU).runs
    assert (run.first, run.slots) == (40, 1)
    assert run.window(None).mask.shape == (1, 1, 1, 1, 128)


def test_far_slots_and_long_blocks_make_runs_of_their_own(cache: KvCache) -> None:
    blocks = [at(cache, 0, 50, 1), at(cache, 2, 60, 4), at(cache, 30, 9, 1), at(cache, 31, 0, 40), at(cache, 1, 5, 8)]
    batch = RaggedBatch(blocks, cache, CPU)
    assert sorted((run.first, run.slots, run.width) for run in batch.runs) == [
        (0, 3, 4),
        (1, 1, 8),
        (30, 1, 1),
        (31, 1, 40),
    ]
    covered = np.concatenate([run.scatter.tokens.numpy() for run in batch.runs if run.scatter])
    assert sorted(covered.tolist()) == list(range(len(batch.token_ids)))


def test_the_mask_is_causal_within_the_window(cache: KvCache) -> None:
    batch = RaggedBatch([at(cache, 0, 200, 3), at(cache, 2, 190, 1)], cache, CPU)
    (run,) = batch.runs
    window = run.window(100)
    assert (window.low, window.high) == (64, 256)
    allowed = window.mask[:, 0, :, 0] == 0  # [slots, width, length]
    for slot, query, position in ((0, 0, 200), (0, 2, 202), (2, 0, 190)):
        seen = torch.nonzero(allowed[slot, query]).flatten() + window.low
        assert seen.tolist() == list(range(position - 99, position + 1))
    assert allowed.any(-1).all()  # padding and idle slots too, or they would be NaN


def test_writes_address_each_head_of_each_token(cache: KvCache) -> None:
    batch = RaggedBatch([at(cache, 5, 300, 2), at(cache, 1, 3, 1)], cache, CPU)
    assert [write.pool.room for write in batch.writes] == [512, 256]
    slot = cache.place(1)[1]
    assert batch.writes[0].rows(2).tolist() == [300, 301, 512 + 300, 512 + 301]
    assert batch.writes[1].rows(2).tolist() == [(slot * 2) * 256 + 3, (slot * 2 + 1) * 256 + 3]
    assert batch.writes[1].tokens is not None
    assert batch.writes[1].tokens.tolist() == [2]
