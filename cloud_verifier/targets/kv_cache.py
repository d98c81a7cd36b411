"""Keys and values of all streams, laid out so that one matrix product per layer serves many streams.

A stream lives in one *slot* of a pool. All slots of a pool have the same room (256 tokens, 512, 1024, ...), so a run
of neighbouring slots is one strided tensor. A stream that outgrows its pool moves to the next one; its length decides
where it lives, which keeps streams of like length together and memory within about twice what is held. Slots in use
are always 0..n-1: closing a stream moves the last slot into the hole. Rollback only changes a number.

What must outlive a stream is copied out of its slot into a :class:`KvBlock`, and into another stream's slot later:
slots hold nothing but streams that are being computed. Pools and blocks share one budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from ...protocol.errors import InvalidParameterError
from .target import OutOfKvMemoryError

__all__ = ["KvBlock", "KvCache", "LayerShape", "SlotPool"]

_SMALLEST_ROOM = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches: heads and widths of keys and values, and its window (None: everything)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


@dataclass(frozen=True, slots=True, eq=False)
class KvBlock:
    """Keys and values of some neighbouring tokens: ``keys[layer]`` is [kv_heads, tokens, key_dim], ``values`` alike."""

    tokens: int
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    nbytes: int


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

    @property
    def slot_bytes(self) -> int:
        """What one slot takes."""
        return sum(tensor.element_size() * math.prod(tensor.shape[1:]) for tensor in (*self.keys, *self.values))

    @property
    def full(self) -> bool:
        """Whether the next stream needs a larger pool."""
        return len(self.owners) == self._slots

    @property
    def stride(self) -> int:
        """By how many slots a pool grows when it may."""
        return max(1, self._slots // 4)

    def growth(self, slots: int) -> int:
        """The most memory more that is held while the pool grows by so many slots: a layer's old copy included."""
        return slots * self.slot_bytes + max(tensor.nbytes for tensor in (*self.keys, *self.values))

    def grow(self, slots: int) -> None:
        """Make room for so many slots more."""
        self._resize(self._slots + slots)

    def compact(self) -> None:
        """Give the memory of free slots back."""
        if not self.full:
            self._resize(len(self.owners))

    def take(self, stream: int) -> int:
        """Give a stream the next slot, all zeros; the pool must not be full."""
        self.owners.append(stream)
        return len(self.owners) - 1

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
    """Streams and the pools they live in.

    Args:
        max_length: tokens of the longest stream that the model takes.
        budget: bytes that pools and blocks may take together, also in the moment in which a pool grows; None for
            whatever there is. A stream that would not fit into it alone is out of the question, so :attr:`max_length`
            may be lower than was asked for.

    Raises:
        InvalidParameterError: the budget does not hold a single stream of a few hundred tokens.
    """

    def __init__(
        self,
        layers: Sequence[LayerShape],
        *,
        max_length: int,
        dtype: torch.dtype,
        device: torch.device,
        budget: int | None = None,
    ) -> None:
        self.layers = tuple(layers)
        width = torch.empty((), dtype=dtype).element_size()
        self.token_bytes = width * sum(layer.kv_heads * (layer.key_dim + layer.value_dim) for layer in layers)
        self.budget = budget
        self.max_length = max_length
        if budget is not None:
            self.max_length = min(max_length, budget // self.token_bytes)
            least = min(max_length, _SMALLEST_ROOM)
            if self.max_length < least:
                problem = f"{budget} bytes hold no stream; this model needs {least * self.token_bytes} at least"
                raise InvalidParameterError("kv_memory", problem)
        self._dtype = dtype
        self._device = device
        self._streams: dict[int, _Stream] = {}
        self._pools: dict[int, SlotPool] = {}
        self._block_bytes = 0

    @property
    def nbytes(self) -> int:
        """Memory held by all pools and blocks."""
        return self._block_bytes + sum(pool.nbytes for pool in list(self._pools.values()))

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """Start an empty stream in a slot of at least ``room`` tokens; OutOfKvMemoryError when memory is out."""
        if stream in self._streams:
            raise InvalidParameterError("stream", f"{stream} is open already")
        self._check_capacity(capacity)
        pool, slot = self._take(stream, tokens=min(room, capacity))
        self._streams[stream] = _Stream(capacity, pool, slot)

    def close(self, stream: int) -> None:
        """End a stream and free its slot."""
        entry = self._entry(stream)
        del self._streams[stream]
        self._free(entry.pool, entry.slot, entry.touched)

    def save(self, stream: int, start: int, end: int) -> KvBlock:
        """Copy tokens [start, end) of a stream; OutOfKvMemoryError when memory is out. :meth:`release` frees it."""
        entry = self._entry(stream)
        if not 0 <= start < end <= entry.length:
            raise InvalidParameterError("end", f"[{start}, {end}) of a stream that holds {entry.length} tokens")
        nbytes = (end - start) * self.token_bytes
        if not self._affords(nbytes):
            raise OutOfKvMemoryError
        pool, slot = entry.pool, entry.slot
        try:
            with torch.inference_mode():
                keys = tuple(tensor[slot, :, start:end].clone() for tensor in pool.keys)
                values = tuple(tensor[slot, :, start:end].clone() for tensor in pool.values)
        except (MemoryError, RuntimeError) as error:
            raise OutOfKvMemoryError from error
        self._block_bytes += nbytes
        return KvBlock(end - start, keys, values, nbytes)

    def restore(self, stream: int, blocks: Sequence[KvBlock]) -> None:
        """Append blocks to a stream; OutOfKvMemoryError when memory is out."""
        start = self.length(stream)
        end = start + sum(block.tokens for block in blocks)
        if end > self.capacity(stream):
            raise InvalidParameterError("blocks", f"{end} tokens, but stream {stream} may hold {self.capacity(stream)}")
        if not blocks:
            return
        self.reserve(stream, end)
        pool, slot = self.place(stream)
        with torch.inference_mode():
            for layer in range(len(self.layers)):
                pool.keys[layer][slot, :, start:end] = torch.cat([block.keys[layer] for block in blocks], dim=1)
                pool.values[layer][slot, :, start:end] = torch.cat([block.values[layer] for block in blocks], dim=1)
        self.advance(stream, end)

    def release(self, block: KvBlock) -> None:
        """A block is no longer held."""
        self._block_bytes -= block.nbytes

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
        """Make room for ``length`` tokens, moving the stream to a roomier pool if needed.

        OutOfKvMemoryError when memory is out; the stream stays where it was.
        """
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
        if not 1 <= capacity <= self.max_length:
            raise InvalidParameterError("capacity", f"must be 1 to {self.max_length}, not {capacity}")

    def _take(self, stream: int, *, tokens: int) -> tuple[SlotPool, int]:
        room = _SMALLEST_ROOM
        while room < tokens:
            room *= 2
        room = min(room, self.max_length)
        try:
            pool = self._pools.get(room) or SlotPool(room, self.layers, self._dtype, self._device)
            if pool.full:
                pool.grow(self._affordable(pool))
            slot = pool.take(stream)
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError, its CUDA subclass included
            raise OutOfKvMemoryError from error
        self._pools[room] = pool
        return pool, slot

    def _affordable(self, pool: SlotPool) -> int:
        """By how many slots a pool may grow: its stride; or one, if need be after all have given back what is free."""
        if self._affords(pool.growth(pool.stride)):
            return pool.stride
        if not self._affords(pool.growth(1)):
            for other in self._pools.values():
                other.compact()
            if not self._affords(pool.growth(1)):
                raise OutOfKvMemoryError
        return 1

    def _affords(self, nbytes: int) -> bool:
        return self.budget is None or self.nbytes + nbytes <= self.budget

    def _free(self, pool: SlotPool, slot: int, touched: int) -> None:
        moved = pool.free(slot, touched)
        if not pool.owners:
            del self._pools[pool.room]
        elif moved in self._streams and self._streams[moved].pool is pool:
            self._streams[moved].slot = slot


def _zeros(slots: int, heads: int, room: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((slots, heads, room, width), dtype=dtype, device=device)
