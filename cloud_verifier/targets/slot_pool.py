"""Slots of one size: the tensors that hold keys and values of streams of like length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

__all__ = ["LayerShape", "SlotPool"]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one attention layer caches: heads and widths of keys and values, and its window (None: everything)."""

    kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None


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

    def absorb(self, other: SlotPool, stream: int, length: int) -> int:
        """Take over the first ``length`` tokens of the only stream of ``other``; this pool must be full.

        The other pool is emptied tensor by tensor as this one grows. An allocation that fails on the way leaves this
        pool as it was, and nothing of use in the other.
        """
        used = len(self.owners)
        with torch.inference_mode():
            for mine, theirs in ((self.keys, other.keys), (self.values, other.values)):
                for layer, old in enumerate(mine):
                    new = torch.zeros((used + 1, *old.shape[1:]), dtype=old.dtype, device=old.device)
                    new[:used] = old[:used]
                    new[used, :, :length] = theirs[layer][0, :, :length]
                    mine[layer] = new
                    theirs[layer] = new.new_empty((0, *theirs[layer].shape[1:]))
        self._slots = used + 1
        return self.take(stream)

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

    def wipe(self, slot: int, start: int, end: int) -> None:
        """Set tokens [start, end) of a slot to zero."""
        with torch.inference_mode():
            for tensor in (*self.keys, *self.values):
                tensor[slot, :, start:end].zero_()

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


def _zeros(slots: int, heads: int, room: int, width: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.zeros((slots, heads, room, width), dtype=dtype, device=device)
