from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from draftwire.cloud_verifier.targets.kv_cache import KvCache
from draftwire.cloud_verifier.targets.slot_pool import LayerShape
from draftwire.cloud_verifier.targets.target import OutOfKvMemoryError
from draftwire.protocol.errors import InvalidParameterError

LAYERS = [LayerShape(kv_heads=2, key_dim=4, value_dim=6, window=None), LayerShape(3, 4, 4, 8)]
TOKEN_BYTES = 4 * (2 * (4 + 6) + 3 * (4 + 4))
WIDEST_BYTES = 4 * 3 * 4  # of a token in one tensor: what may be held twice


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


def test_rollback_moves_no_data(cache: KvCache) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    place = cache.place(1)
    cache.rollback(1, 30)
    assert cache.place(1) == place
    assert cache.length(1) == 30
    assert_holds(cache, 1)


def test_what_is_rolled_back_can_be_wiped(cache: KvCache) -> None:
    for stream in (1, 2):
        cache.open(stream, 100)
        fill(cache, stream, 50)
    cache.rollback(1, 40)  # what went before must go too
    cache.rollback(1, 30, wipe=True)
    pool, slot = cache.place(1)
    assert all((tensor[slot, :, 30:] == 0).all() for tensor in (*pool.keys, *pool.values))
    assert_holds(cache, 1)
    assert_holds(cache, 2)
    fill(cache, 1, 20)
    cache.close(1)
    cache.open(3, 100)
    pool, slot = cache.place(3)
    assert all((tensor[slot] == 0).all() for tensor in (*pool.keys, *pool.values))


def test_saved_tokens_outlive_their_stream_and_go_on_in_another(cache: KvCache) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    blocks = [cache.save(1, 0, 16), cache.save(1, 16, 40)]
    cache.open(2, 600)
    fill(cache, 2, 3)
    cache.close(1)
    cache.rollback(2, 0)
    cache.restore(2, blocks)
    assert cache.length(2) == 40
    assert_holds(cache, 2, mark=1.0)
    cache.restore(2, blocks * 7)  # more than its slot has room for
    assert cache.length(2) == 320
    assert cache.place(2)[0].room == 512
    assert_holds(cache, 2, mark=1.0)


def test_saved_tokens_count_until_they_are_released(cache: KvCache) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    before = cache.nbytes
    block = cache.save(1, 0, 20)
    assert cache.nbytes == before + 20 * TOKEN_BYTES == before + block.nbytes
    cache.close(1)
    assert cache.nbytes == block.nbytes
    cache.release(block)
    assert cache.nbytes == 0


@pytest.mark.parametrize(("start", "end"), [(0, 51), (5, 5), (-1, 4), (9, 4)])
def test_what_is_not_there_cannot_be_saved(cache: KvCache, start: int, end: int) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    with pytest.raises(InvalidParameterError, match="end"):
        cache.save(1, start, end)


def test_more_than_a_stream_may_hold_cannot_be_restored(cache: KvCache) -> None:
    cache.open(1, 100)
    fill(cache, 1, 50)
    block = cache.save(1, 0, 50)
    with pytest.raises(InvalidParameterError, match="blocks"):
        cache.restore(1, [block, block])
    assert cache.length(1) == 50


def test_blocks_that_cannot_be_copied_for_want_of_memory_leave_the_stream_as_it_was(
    cache: KvCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.open(1, 50)
    cache.reserve(1, 20)
    cache.advance(1, 20)
    block = cache.save(1, 0, 16)
    cache.rollback(1, 0)

    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory")

    monkeypatch.setattr(torch, "cat", refuse)
    with pytest.raises(OutOfKvMemoryError):
        cache.restore(1, [block])
    assert cache.length(1) == 0


def of_budget(tokens: int, *, max_length: int = 1000) -> KvCache:
    """Memory for so many tokens, and for one tensor to be held twice while a pool changes its size."""
    budget = tokens * (TOKEN_BYTES + WIDEST_BYTES)
    return KvCache(LAYERS, max_length=max_length, dtype=torch.float32, device=torch.device("cpu"), budget=budget)


class Allocations:
    """Every tensor that was made and is still held; the fault that allocating is to meet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 0
        self.fail_after: int | None = None
        self._held: list[weakref.ref[torch.Tensor]] = []
        self._zeros = torch.zeros
        monkeypatch.setattr(torch, "zeros", self._make)

    def _make(self, *sizes: Any, **options: Any) -> torch.Tensor:
        tensor = self._zeros(*sizes, **options)
        if self.fail_after is not None and tensor.nbytes:
            if not self.fail_after:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            self.fail_after -= 1
        self._held = [held for held in self._held if held() is not None] + [weakref.ref(tensor)]
        self.most = max(self.most, sum(held.nbytes for ref in self._held if (held := ref()) is not None))
        return tensor


def test_a_budget_is_never_exceeded_and_what_does_not_fit_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, allocations = of_budget(1000), Allocations(monkeypatch)
    opened = 3  # 256 tokens each
    for stream in range(1, opened + 1):
        cache.open(stream, 1000)
        fill(cache, stream, 100)
    assert not cache.fits(1)
    with pytest.raises(OutOfKvMemoryError):
        cache.open(4, 200)
    with pytest.raises(OutOfKvMemoryError):
        cache.reserve(1, 257)
    for stream in range(1, opened + 1):
        assert_holds(cache, stream)
    cache.close(2)
    assert cache.fits(200)
    cache.open(9, 200)
    assert cache.budget is not None
    assert allocations.most <= cache.budget


def test_free_slots_of_one_pool_make_room_in_another(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, allocations = of_budget(1600), Allocations(monkeypatch)
    for stream in range(1, 7):
        cache.open(stream, 500)
        fill(cache, stream, 10)
    for stream in (1, 2):
        cache.close(stream)
    cache.open(8, 500, room=300)
    assert cache.place(8)[0].room == 512
    assert cache.budget is not None
    assert allocations.most <= cache.budget


def test_a_stream_by_itself_grows_in_all_that_the_budget_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, allocations = of_budget(2600, max_length=8000), Allocations(monkeypatch)
    cache.open(1, cache.max_length)
    for length in range(50, 2601, 50):
        fill(cache, 1, length)
        assert_holds(cache, 1)
    assert cache.nbytes == 2600 * TOKEN_BYTES
    assert cache.budget is not None
    assert allocations.most <= cache.budget
    cache.close(1)
    assert cache.nbytes == 0


def test_to_the_last_byte_of_the_budget_it_comes_by_being_opened_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, allocations = of_budget(2640, max_length=8000), Allocations(monkeypatch)
    assert cache.budget == 3360 * TOKEN_BYTES
    assert cache.max_length == 3360
    cache.open(1, 3360, room=2600)
    fill(cache, 1, 2640)
    with pytest.raises(OutOfKvMemoryError):  # not even one tensor of it can be held twice
        cache.reserve(1, 2641)
    assert_holds(cache, 1)
    cache.close(1)
    assert cache.fits(3360)
    cache.open(1, 3360, room=2641)
    fill(cache, 1, 3360)
    assert not cache.fits(1)
    with pytest.raises(OutOfKvMemoryError):
        cache.open(2, 1)
    with pytest.raises(OutOfKvMemoryError):
        cache.save(1, 0, 1)
    assert allocations.most == cache.budget
    cache.close(1)
    assert cache.nbytes == 0


def test_a_stream_that_does_not_fit_twice_moves_beside_others_that_stay() -> None:
    cache = of_budget(1800)
    cache.open(1, 500, room=500)
    fill(cache, 1, 500)
    for stream in (2, 3):
        cache.open(stream, 500)
        fill(cache, stream, 200)
    cache.close(3)
    cache.open(4, 1000, room=500)
    fill(cache, 4, 512)
    cache.close(1)
    cache.open(5, 1000, room=999)
    fill(cache, 5, 7)
    with pytest.raises(OutOfKvMemoryError):
        cache.reserve(4, 513)
    cache.close(5)
    cache.reserve(4, 513)
    assert_holds(cache, 2)
    assert_holds(cache, 4)


@pytest.mark.parametrize("after", range(4))
def test_a_machine_with_less_memory_than_the_budget_loses_one_stream_at_most(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    cache, allocations = of_budget(1400), Allocations(monkeypatch)
    cache.open(2, 1000)
    fill(cache, 2, 200)
    cache.open(1, 1000, room=300)
    fill(cache, 1, 500)
    allocations.fail_after = after  # of the four tensors of the new pool
    with pytest.raises(OutOfKvMemoryError):
        cache.reserve(1, 600)
    allocations.fail_after = None
    assert cache.length(1) == (0 if after else 500)
    assert_holds(cache, 2)
    assert_holds(cache, 1)
    cache.rollback(1, 0)
    fill(cache, 1, 20)
    assert_holds(cache, 1)
    cache.close(1)
    assert cache.nbytes == 256 * TOKEN_BYTES
    cache.open(3, 1000, room=600)
    fill(cache, 3, 600)
    assert_holds(cache, 2)
    for stream in (2, 3):
        cache.close(stream)
    assert cache.nbytes == 0


def test_saved_tokens_are_within_the_budget_too() -> None:
    cache = of_budget(556)
    cache.open(1, 200)
    cache.open(2, 200)
    fill(cache, 1, 100)
    cache.close(2)
    block = cache.save(1, 0, 100)
    more = [cache.save(1, 0, 100), cache.save(1, 0, 100)]
    with pytest.raises(OutOfKvMemoryError):
        cache.save(1, 44, 45)
    assert cache.fits(256), "blocks can be released"
    with pytest.raises(OutOfKvMemoryError):
        cache.open(2, 200)
    for saved in (block, *more):
        cache.release(saved)
    cache.open(2, 200)
    cache.save(1, 44, 45)


def test_a_budget_below_the_longest_stream_shortens_it() -> None:
    cache = of_budget(550)
    assert cache.max_length == 700
    cache.open(1, 700, room=600)
    fill(cache, 1, 700)
    assert_holds(cache, 1)
    with pytest.raises(InvalidParameterError, match="capacity"):
        cache.open(2, 701)
    assert of_budget(1000).max_length == 1000


def test_a_budget_that_is_too_little_is_refused_with_the_least_that_does() -> None:
    least = 512 * (TOKEN_BYTES + WIDEST_BYTES)
    with pytest.raises(InvalidParameterError, match=rf"kv_memory: .* 2 streams of 256 tokens take {least},.* 1M"):
        of_budget(511)
    cache = of_budget(512)
    for stream in (1, 2):
        cache.open(stream, 200)
    with pytest.raises(InvalidParameterError, match=f"take {2 * 10 * (TOKEN_BYTES + WIDEST_BYTES)}"):
        of_budget(19, max_length=10)
    assert of_budget(20, max_length=10).max_length == 10


def test_unknown_streams_are_refused(cache: KvCache) -> None:
    for call in (cache.close, cache.length, cache.capacity, cache.place):
        with pytest.raises(InvalidParameterError, match="7 is not open"):
            call(7)
