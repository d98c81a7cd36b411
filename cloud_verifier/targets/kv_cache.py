"""Keys and values of all streams, laid out so that one matrix product per layer serves many streams.

A stream lives in one *slot* of a pool. All slots of a pool have the same room (256 tokens, 512, 1024, ...), so a run
of neighbouring slots is one strided tensor. A stream that outgrows its pool moves to the next one; its length decides
where it lives, which keeps streams of like length together and memory within about twice what is held. Slots in use
are always 0..n-1: closing a stream moves the last slot into the hole. Rollback only changes a number.

What must outlive a stream is copied out of its slot into a :class:`KvBlock`, and into another stream's slot later:
slots hold nothing but streams that are being computed. Pools and blocks share one budget.

Pools change their size tensor by tensor, so what is held twice meanwhile is one tensor: so much of the budget is kept
free for it. A stream that is alone in its pool can move in the same way, and then fits wherever its new slot does. Only
a stream that is alone in the cache may be opened with more: nothing is held twice then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ...protocol.errors import InvalidParameterError
from .slot_pool import LayerShape, SlotPool
from .target import OutOfKvMemoryError

__all__ = ["KvBlock", "KvCache"]

_SMALLEST_ROOM = 256

_MEBIBYTE = 1 << 20

_LEAST_STREAMS = 2
"""Of the smallest room, which every budget must hold: with fewer there is nothing to share, nor to check at load."""


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


class _OverBudgetError(OutOfKvMemoryError):
    """The budget is used up; the machine was not asked."""


class KvCache:
    """Streams and the pools they live in.

    Args:
        max_length: tokens of the longest stream that the model takes.
        budget: bytes that pools and blocks may take together, also in the moment in which a pool changes its size;
            None for whatever there is. A stream that would not fit into it alone is out of the question, so
            :attr:`max_length` may be lower than was asked for.

    Raises:
        InvalidParameterError: the budget does not hold two streams of a few hundred tokens.
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
            widest = width * max(layer.kv_heads * max(layer.key_dim, layer.value_dim) for layer in layers)
            room = min(max_length, _SMALLEST_ROOM)
            _check_budget(budget, least=_LEAST_STREAMS * room * (self.token_bytes + widest), room=room)
            self._usable = budget * self.token_bytes // (self.token_bytes + widest)
            self.max_length = min(max_length, budget // self.token_bytes)
        self._dtype = dtype
        self._device = device
        self._streams: dict[int, _Stream] = {}
        self._pools: dict[int, SlotPool] = {}
        self._block_bytes = 0

    @property
    def nbytes(self) -> int:
        """Memory held by all pools and blocks."""
        return self._block_bytes + sum(pool.nbytes for pool in list(self._pools.values()))

    def fits(self, room: int) -> bool:
        """Whether a stream with room for so many tokens could be opened, were all blocks released."""
        if self.budget is None:
            return True
        held = sum(len(pool.owners) * pool.slot_bytes for pool in self._pools.values())
        return held + self._slot_room(room) * self.token_bytes <= (self._usable if held else self.budget)

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """Start an empty stream in a slot of at least ``room`` tokens; OutOfKvMemoryError when memory is out."""
        if stream in self._streams:
            raise InvalidParameterError("stream", f"{stream} is open already")
        self._check_capacity(capacity)
        pool, slot = self._take(stream, self._slot_room(min(room, capacity)))
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
        self.advance(stream, end)
        try:
            with torch.inference_mode():
                for layer in range(len(self.layers)):
                    pool.keys[layer][slot, :, start:end] = torch.cat([block.keys[layer] for block in blocks], dim=1)
                    pool.values[layer][slot, :, start:end] = torch.cat([block.values[layer] for block in blocks], dim=1)
        except (MemoryError, RuntimeError) as error:
            self.rollback(stream, start)
            raise OutOfKvMemoryError from error

    def release(self, block: KvBlock) -> None:
        """A block is no longer held."""
        self._block_bytes -= block.nbytes

    def length(self, stream: int) -> int:
        """Tokens held by a stream."""
        return self._entry(stream).length

    def capacity(self, stream: int) -> int:
        """Tokens that a stream may hold."""
        return self._entry(stream).capacity

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:
        """Forget all but the first ``length`` tokens; ``wipe``: and set what was ever written beyond them to zero."""
        entry = self._entry(stream)
        if not 0 <= length <= entry.length:
            raise InvalidParameterError("length", f"{length}, but stream {stream} holds {entry.length} tokens")
        entry.length = length
        if wipe:
            entry.pool.wipe(entry.slot, length, entry.touched)
            entry.touched = length

    def reserve(self, stream: int, length: int) -> None:
        """Make room for ``length`` tokens, moving the stream to a roomier pool if needed.

        OutOfKvMemoryError when memory is out; the stream stays where it was, or in the worst case is empty.
        """
        entry = self._entry(stream)
        if length > entry.pool.room:
            room = self._slot_room(length)
            try:
                self._move(stream, entry, room)
            except _OverBudgetError:
                self._pour(stream, entry, room)
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

    def _slot_room(self, tokens: int) -> int:
        room = _SMALLEST_ROOM
        while room < tokens:
            room *= 2
        if self.budget is not None and room * self.token_bytes > self._usable >= tokens * self.token_bytes:
            room = self._usable // self.token_bytes
        return min(room, self.max_length)

    def _pool(self, room: int) -> SlotPool:
        return self._pools.get(room) or SlotPool(room, self.layers, self._dtype, self._device)

    def _take(self, stream: int, room: int) -> tuple[SlotPool, int]:
        try:
            pool = self._pool(room)
            if pool.full:
                pool.grow(self._affordable(pool, alone=self._streams.keys() <= {stream}))
            slot = pool.take(stream)
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError, its CUDA subclass included
            raise OutOfKvMemoryError from error
        self._pools[room] = pool
        return pool, slot

    def _move(self, stream: int, entry: _Stream, room: int) -> None:
        """Copy a stream into a slot of another pool, and free the old one."""
        old, old_slot, old_touched = entry.pool, entry.slot, entry.touched
        pool, slot = self._take(stream, room)
        with torch.inference_mode():
            for new, tensor in zip((*pool.keys, *pool.values), (*old.keys, *old.values), strict=True):
                new[slot, :, : entry.length] = tensor[old_slot, :, : entry.length]
        entry.pool, entry.slot, entry.touched = pool, slot, 0
        self._free(old, old_slot, old_touched)

    def _pour(self, stream: int, entry: _Stream, room: int) -> None:
        """Move a stream that does not fit twice, if it is alone in its pool: that goes as the other one grows."""
        old, pool = entry.pool, self._pool(room)
        if len(old.owners) > 1 or not pool.full or not self._affords(pool.slot_bytes - old.nbytes):
            raise OutOfKvMemoryError
        self._pools[room] = pool
        try:
            slot = pool.absorb(old, stream, entry.length)
        except (MemoryError, RuntimeError) as error:  # the machine has less than the budget
            if not pool.owners:
                del self._pools[room]
            if not len(old.keys[0]):
                self._lose(stream, entry)
            raise OutOfKvMemoryError from error
        self._pools.pop(old.room, None)
        entry.pool, entry.slot, entry.touched = pool, slot, 0

    def _lose(self, stream: int, entry: _Stream) -> None:
        """What a stream held is half here and half there: it is empty from now on, in a slot without room."""
        self._pools.pop(entry.pool.room, None)
        nowhere = SlotPool(0, self.layers, self._dtype, self._device)
        nowhere.grow(1)
        entry.pool, entry.slot, entry.length, entry.touched = nowhere, nowhere.take(stream), 0, 0

    def _affordable(self, pool: SlotPool, *, alone: bool) -> int:
        """By how many slots a pool may grow: its stride; or one, if need be after all have given back what is free."""
        if self._affords(pool.stride * pool.slot_bytes):
            return pool.stride
        if not self._affords(pool.slot_bytes, alone=alone):
            for other in self._pools.values():
                other.compact()
            if not self._affords(pool.slot_bytes, alone=alone):
                raise _OverBudgetError
        return 1

    def _affords(self, nbytes: int, *, alone: bool = False) -> bool:
        return self.budget is None or self.nbytes + nbytes <= (self.budget if alone else self._usable)

    def _free(self, pool: SlotPool, slot: int, touched: int) -> None:
        moved = pool.free(slot, touched)
        if not pool.owners:
            self._pools.pop(pool.room, None)
        elif moved in self._streams and self._streams[moved].pool is pool:
            self._streams[moved].slot = slot


def _check_budget(budget: int, *, least: int, room: int) -> None:
    if budget < least:
        raise InvalidParameterError(
            "kv_memory",
            f"{budget} bytes are too few for this model's keys and values: {_LEAST_STREAMS} streams of {room} tokens "
            f"take {least}, and less cannot be served; set --kv-memory to {-(-least // _MEBIBYTE)}M or more",
        )
