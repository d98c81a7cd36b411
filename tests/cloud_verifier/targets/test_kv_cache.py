from __future__ import annotations

import pytest
import torch
from draftwire.cloud_verifier.targets.kv_cache import KvCache, LayerShape
from draftwire.protocol.errors import InvalidParameterError

LAYERS = [LayerShape(kv_heads=2, key_dim=4, value_dim=6, window=None), LayerShape(3, 4, 4, 8)]
TOKEN_BYTES = 4 * (2 * (4 + 6) + 3 * (4 + 4))


@pytest.fixture
def cache() -> KvCache:
    return KvCache(LAYERS, max_length=1000, dtype=torch.float32, device=torch.device("cpu"))


def fill(cache: KvCache, stream: int, length: int) -> None:
    """Write the stream's id into its first ``length`` tokens."""
    cache.reserve(stream, length)
    cache.advance(stream, length)
    pool, slot = cache.place(stream)
    with torch.inference_mode():
        for tensor in (*pool.keys, *pool.values):
            tensor[slot, :, :length] = float(stream)


def assert_holds(cache: KvCache, stream: int, mark: float | None = None) -> None:
    pool, slot = cache.place(stream)
    for tensor in (*pool.keys, *pool.values):
        assert (tensor[slot, :, : cache.length(stream)] == (mark or stream)).all()


def test_slots_in_use_stay_dense_whatever_is_closed(cache: KvCache) -> None:
    for stream in range(1, 9):
        cache.open(stream, 100)
        fill(cache, stream, 10 * stream)
    for closed in (8, 1, 4, 6):
        cache.close(closed)
        live = [stream for stream in range(1, 9) if stream in cache._streams]
        assert sorted(cache.place(stream)[1] for stream in live) == list(range(len(live)))
        for stream in live:
            assert_holds(cache, stream)


def test_memory_follows_what_is_open_and_ends_at_nothing(cache: KvCache) -> None:
    assert cache.nbytes == 0
    for stream in range(1, 41):
        cache.open(stream, 200)
        assert cache.nbytes <= (1.25 * stream + 1) * 256 * TOKEN_BYTES
    for stream in range(1, 41):
        cache.close(stream)
        assert cache.nbytes <= 2 * (40 - stream) * 256 * TOKEN_BYTES
    assert cache.nbytes == 0


def test_a_freed_slot_is_wiped(cache: KvCache) -> None:
    for stream in range(1, 7):
        cache.open(stream, 100)
        fill(cache, stream, 50)
        cache.rollback(stream, 5)  # what was rolled back must go too
    pool, _ = cache.place(1)
    slots = len(pool.keys[0])
    cache.close(6)  # the last slot
    cache.close(1)  # one that the last slot moves into
    assert len(pool.keys[0]) == slots, "the pool must not have shrunk: fresh memory would prove nothing"
    for slot in (4, 5):
        assert all((tensor[slot] == 0).all() for tensor in (*pool.keys, *pool.values))


def test_growing_moves_a_stream_and_what_it_holds(cache: KvCache) -> None:
    for stream in (1, 2):
        cache.open(stream, 1000)
        fill(cache, stream, 200)
    cache.reserve(1, 257)
    assert [cache.place(stream)[0].room for stream in (1, 2)] == [512, 256]
    cache.reserve(2, 513)
    assert cache.place(2)[0].room == 1000  # never more than the longest stream
    for stream in (1, 2):
        assert_holds(cache, stream)
    assert sorted(cache._pools) == [512, 1000]


def test_rollback_and_adoption_move_no_data(cache: KvCache) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    place = cache.place(1)
    cache.rollback(1, 30)
    cache.adopt(2, 1, 20, 900)
    assert cache.place(2) == place
    assert (cache.length(2), cache.capacity(2)) == (20, 900)
    assert_holds(cache, 2, mark=1)
    cache.open(3, 10)
    cache.close(2)
    assert cache.place(3)[1] == 0


def test_unknown_streams_are_refused(cache: KvCache) -> None:
    for call in (cache.close, cache.length, cache.capacity, cache.place):
        with pytest.raises(InvalidParameterError, match="7 is not open"):
            call(7)
