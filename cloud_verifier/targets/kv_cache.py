"""Keys and values of all streams, laid out so that one matrix product per layer serves many streams.

A stream lives in one *slot* of a pool. All slots of a pool have the same room (256 tokens, 512, 1024, ...), so a run
of neighbouring slots is one strided tensor. A stream that outgrows its pool moves to the next one; its length decides
where it lives, which keeps streams of like length together and memory within about twice what is held. Slots in use
are always 0..n-1: closing a stream moves the last slot into the hole. Rollback only changes a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ...protocol.errors import BusyError, ErrorCode, InvalidParameterError

__all__ = ["KvCache", "LayerShape", "SlotPool"]

_SMALLEST_ROOM = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches: heads and widths of keys and values, and its window (None: everything)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


@dataclass(slots=True)
class _Stream:
    capacity: int
    pool: SlotPool
    slot: int
    length: int = 0
    touched: int = 0
    """The most tokens ever written to the slot: what must be wiped before another stream gets it."""


class SlotPool:
    """Slots of ``room`` tokens each; ``keys[layer]`` is [slots, kv_heads, room, key_dim], ``values`` alike."""

    def __init__(self, room: int, layers: Sequence[LayerShape], dtype: torch.dtype, device: torch.device) -> None:
        self.room = room
        self.owners: list[int] = []
        self._slots = 0
        self.keys = [_zeros(0, layer.kv_heads, room, layer.key_dim, dtype, device) for layer in layers]
        self.values = [_zeros(0, layer.kv_heads, room, layer.value_dim, dtype, device) for layer in layers]

    @property
    def nbytes(self) -> int:
        """Memory held, free slots included."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    def take(self, stream: int) -> int:
        """Give a stream the next slot, all zeros; grows by a quarter when full."""
        slot = len(self.owners)
        if slot == self._slots:
            self._resize(self._slots + max(1, self._slots // 4))
        self.owners.append(stream)
        return slot

    def free(self, slot: int, touched: int) -> int:
        """Free a slot of which ``touched`` tokens were written; returns the stream that moved into it.

        The freed slot is wiped: what is masked still enters the products, and a NaN left by one stream would
        reach the next one.
        """
        last = len(self.owners) - 1
        moved = self.owners[slot] = self.owners[last]
        self.owners.pop()
        with torch.inference_mode():
            for tensor in (*self.keys, *self.values):
                if slot != last:
                    tensor[slot].copy_(tensor[last])
                    tensor[last].zero_()
                else:
                    tensor[last, :, :touched].zero_()
        if last <= self._slots // 2:
            with suppress(MemoryError, RuntimeError):  # giving memory back may wait
                self._resize(last + last // 4)
        return moved

    def _resize(self, slots: int) -> None:
        used = len(self.owners)
        self._slots = min(self._slots, slots)  # true at every moment, should an allocation below fail
        with torch.inference_mode():
            for tensors in (self.keys, self.values):
                for layer, old in enumerate(tensors):  # by layer, so that old and new copies overlap little
                    new = torch.zeros((slots, *old.shape[1:]), dtype=old.dtype, device=old.device)
                    new[:used] = old[:used]
                    tensors[layer] = new
        self._slots = slots


class KvCache:
    """Streams and the pools they live in."""

    def __init__(
        self, layers: Sequence[LayerShape], *, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.layers = tuple(layers)
        self._max_length = max_length
        self._dtype = dtype
        self._device = device
        self._streams: dict[int, _Stream] = {}
        self._pools: dict[int, SlotPool] = {}

    @property
    def nbytes(self) -> int:
        """Memory held by all pools."""
        return sum(pool.nbytes for pool in self._pools.values())

    def open(self, stream: int, capacity: int) -> None:
        """Start an empty stream; BusyError when memory is out."""
        if stream in self._streams:
            raise InvalidParameterError("stream", f"{stream} is open already")
        self._check_capacity(capacity)
        pool, slot = self._take(stream, tokens=1)
        self._streams[stream] = _Stream(capacity, pool, slot)

    def close(self, stream: int) -> None:
        """End a stream and free its slot."""
        entry = self._entry(stream)
        del self._streams[stream]
        self._free(entry.pool, entry.slot, entry.touched)

    def adopt(self, stream: int, source: int, length: int, capacity: int) -> None:
        """Hand the slot of ``source``, which ends, to ``stream``, cut to ``length`` tokens."""
        entry = self._entry(source)
        if stream in self._streams:
            raise InvalidParameterError("stream", f"{stream} is open already")
        if not 0 <= length <= entry.length:
            raise InvalidParameterError("length", f"{length}, but stream {source} holds {entry.length} tokens")
        self._check_capacity(capacity)
        if capacity < length:
            raise InvalidParameterError("capacity", f"{capacity} is below the {length} tokens taken over")
        entry.capacity, entry.length = capacity, length
        entry.pool.owners[entry.slot] = stream
        self._streams[stream] = self._streams.pop(source)

    def length(self, stream: int) -> int:
        """Tokens held by a stream."""
        return self._entry(stream).length

    def capacity(self, stream: int) -> int:
        """Tokens that a stream may hold."""
        return self._entry(stream).capacity

    def rollback(self, stream: int, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        entry = self._entry(stream)
        if not 0 <= length <= entry.length:
            raise InvalidParameterError("length", f"{length}, but stream {stream} holds {entry.length} tokens")
        entry.length = length

    def reserve(self, stream: int, length: int) -> None:
        """Make room for ``length`` tokens, moving the stream to a roomier pool if needed; BusyError without memory."""
        entry = self._entry(stream)
        if length > entry.pool.room:
            old, old_slot, old_touched = entry.pool, entry.slot, entry.touched
            pool, slot = self._take(stream, tokens=length)
            with torch.inference_mode():
                for new, tensor in zip((*pool.keys, *pool.values), (*old.keys, *old.values), strict=True):
                    new[slot, :, : entry.length] = tensor[old_slot, :, : entry.length]
            entry.pool, entry.slot, entry.touched = pool, slot, 0
            self._free(old, old_slot, old_touched)
        entry.touched = max(entry.touched, length)

    def advance(self, stream: int, length: int) -> None:
        """Declare the first ``length`` tokens written."""
        self._entry(stream).length = length

    def place(self, stream: int) -> tuple[SlotPool, int]:
        """The pool and slot of a stream, good until the next open, close or reserve."""
        entry = self._entry(stream)
        return entry.pool, entry.slot

    def _entry(self, stream: int) -> _Stream:
        entry = self._streams.get(stream)
        if entry is None:
            raise InvalidParameterError("stream", f"{stream} is not open")
        return entry

    def _check_capacity(self, capacity: int) -> None:
        if not 1 <= capacity <= self._max_length:
            raise InvalidParameterError("capacity", f"must be 1 to {self._max_length}, not {capacity}")

    def _take(self, stream: int, *, tokens: int) -> tuple[SlotPool, int]:
        room = _SMALLEST_ROOM
        while room < tokens:
            room *= 2
        room = min(room, self._max_length)
        try:
            pool = self._pools.get(room) or SlotPool(room, self.layers, self._dtype, self._device)
            slot = pool.take(stream)
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError, its CUDA subclass included
            raise BusyError("no memory for another stream; try again later", code=ErrorCode.BUSY) from error
        self._pools[room] = pool
        return pool, slot

    def _free(self, pool: SlotPool, slot: int, touched: int) -> None:
        moved = pool.free(slot, touched)
        if not pool.owners:
            del self._pools[pool.room]
        elif moved in self._streams and self._streams[moved].pool is pool:
            self._streams[moved].slot = slot


def _zeros(slots: int, heads: int, room: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((slots, heads, room, width), dtype=dtype, device=device)
