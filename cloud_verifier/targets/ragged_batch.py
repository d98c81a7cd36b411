"""One step's tokens, packed in a row, with every index that the attention layers need, worked out once per step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from .kv_cache import KvCache
from .slot_pool import SlotPool
from .target import Block

__all__ = ["KvWrite", "RaggedBatch", "Scatter", "SlotRun", "Window"]

_LONGEST_GROUPED = 16
"""Longer blocks (prompts) are attended to one by one: their own products are large enough."""

_NARROW = 4
"""Blocks up to this long and longer ones make two sets of runs, so that one long block does not pad all others."""

_GAP_TOKENS = 512
"""Idle slots inside a run cost reading their KV for nothing; worth it up to about this many tokens."""

_LENGTH_STEP = 64
"""KV lengths are rounded up to this, so that products repeat their shapes and their kernels are found ready."""


@dataclass(frozen=True, slots=True)
class Window:
    """The part of the KV that queries may see: tokens [low, high) and an additive mask over them.

    Attributes:
        low: first KV position read.
        high: end of the KV positions read.
        mask: float32 [slots, 1, width, 1, high - low], 0 where allowed and -inf elsewhere.
    """

    low: int
    high: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class Scatter:
    """How the packed row and a run's [slots, width] queries map to each other.

    Attributes:
        gather: [slots * width] index into the packed row of each query; anything for padding.
        valid: [tokens] which of the slots * width queries are real.
        tokens: [tokens] index into the packed row of those.
    """

    gather: torch.Tensor
    valid: torch.Tensor
    tokens: torch.Tensor


@dataclass(slots=True)
class SlotRun:
    """Neighbouring slots of a pool, attended to by one pair of products; also a single long block.

    Attributes:
        pool: where the slots are.
        first: first slot.
        slots: how many, idle ones included.
        width: most tokens of a block; shorter ones are padded.
        positions: [slots, width] of each query, -1 for padding.
        scatter: None when the queries are the whole packed row in order.
    """

    pool: SlotPool
    first: int
    slots: int
    width: int
    positions: NDArray[np.int64]
    scatter: Scatter | None
    device: torch.device
    _windows: dict[int | None, Window] = field(default_factory=dict)

    @property
    def long(self) -> bool:
        """Whether this is one block too long to share a run."""
        return self.width > _LONGEST_GROUPED

    @property
    def causal_from_zero(self) -> bool:
        """Whether this is one block that starts its stream, so that a plain causal mask serves."""
        return self.slots == 1 and int(self.positions[0, 0]) == 0

    def window(self, size: int | None) -> Window:
        """What a layer with this window (None: full attention) reads; made once per step and size."""
        if size not in self._windows:
            self._windows[size] = self._make_window(size)
        return self._windows[size]

    def _make_window(self, size: int | None) -> Window:
        real = self.positions[self.positions >= 0]
        low, high = 0, int(real.max()) + 1
        if not self.long:
            high = min(self.pool.room, -(-high // _LENGTH_STEP) * _LENGTH_STEP)
        if size is not None:
            low = max(0, int(real.min()) - size + 1) // _LENGTH_STEP * _LENGTH_STEP
        # A padding query sees the first key read: a row without any would be NaN.
        query = np.where(self.positions >= 0, self.positions, low)[:, :, None]  # [slots, width, 1]
        key = np.arange(low, high)[None, None]  # [1, 1, high - low]
        allowed = key <= query
        if size is not None:
            allowed &= key > query - size
        mask = np.where(allowed, np.float32(0), np.float32(-np.inf))[:, None, :, None]
        return Window(low, high, torch.from_numpy(mask).to(self.device))


@dataclass(slots=True)
class KvWrite:
    """Where the new keys and values of one pool go."""

    pool: SlotPool
    tokens: torch.Tensor | None
    """[tokens] index into the packed row; None for the whole row."""
    slots: NDArray[np.int64]
    positions: NDArray[np.int64]
    device: torch.device
    _rows: dict[int, torch.Tensor] = field(default_factory=dict)

    def rows(self, heads: int) -> torch.Tensor:
        """Row [heads * tokens] of each new vector in the pool's tensor seen as [slots * heads * room, width]."""
        if heads not in self._rows:
            head = np.arange(heads)[:, None]
            rows = (self.slots * heads + head) * self.pool.room + self.positions
            self._rows[heads] = torch.from_numpy(rows.reshape(-1)).to(self.device)
        return self._rows[heads]


@dataclass(slots=True)
class _Placed:
    """A block and where its stream lives."""

    pool: SlotPool
    slot: int
    start: int
    count: int
    offset: int
    """Index of its first token in the packed row."""


class RaggedBatch:
    """The packed row of a step.

    Attributes:
        token_ids: int64 [tokens].
        positions: int64 [tokens].
        logit_rows: int64 [rows], index into the packed row of every row of logits wanted.
        writes: one for each pool touched.
        runs: together they hold each block once.
    """

    def __init__(self, blocks: Sequence[Block], cache: KvCache, device: torch.device) -> None:
        placed: list[_Placed] = []
        wanted: list[NDArray[np.int64]] = []
        offset = 0
        for block in blocks:
            pool, slot = cache.place(block.stream)
            count = len(block.tokens)
            placed.append(_Placed(pool, slot, block.start, count, offset))
            offset += count
            wanted.append(np.arange(offset - block.rows, offset))
        self._device = device
        self._size = offset
        positions = np.concatenate([np.arange(item.start, item.start + item.count) for item in placed])
        tokens = np.fromiter((token for block in blocks for token in block.tokens), np.int64, offset)
        self.token_ids = self._tensor(tokens)
        self.positions = self._tensor(positions)
        self.logit_rows = self._tensor(np.concatenate(wanted))
        self.writes = [self._write(pool, items, positions) for pool, items in _by_pool(placed)]
        self.runs = [self._run(items) for items in _runs(placed)]

    def _tensor(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _write(self, pool: SlotPool, items: list[_Placed], positions: NDArray[np.int64]) -> KvWrite:
        tokens = np.concatenate([np.arange(item.offset, item.offset + item.count) for item in items])
        slots = np.repeat([item.slot for item in items], [item.count for item in items])
        whole = len(tokens) == self._size
        return KvWrite(pool, None if whole else self._tensor(tokens), slots, positions[tokens], self._device)

    def _run(self, items: list[_Placed]) -> SlotRun:
        """Lay the queries of blocks, ordered by slot, out as [slots, width]."""
        first = items[0].slot
        slots = items[-1].slot - first + 1
        width = max(item.count for item in items)
        positions = np.full((slots, width), -1, np.int64)
        gather = np.zeros((slots, width), np.int64)
        for item in items:
            row = item.slot - first
            positions[row, : item.count] = np.arange(item.start, item.start + item.count)
            gather[row, : item.count] = np.arange(item.offset, item.offset + item.count)
        real = np.flatnonzero(positions.reshape(-1) >= 0)
        tokens = gather.reshape(-1)[real]
        pool = items[0].pool
        if len(real) == positions.size == self._size and np.array_equal(tokens, np.arange(self._size)):
            return SlotRun(pool, first, slots, width, positions, None, self._device)
        scatter = Scatter(self._tensor(gather.reshape(-1)), self._tensor(real), self._tensor(tokens))
        return SlotRun(pool, first, slots, width, positions, scatter, self._device)


def _by_pool(placed: Sequence[_Placed]) -> list[tuple[SlotPool, list[_Placed]]]:
    pools: dict[int, tuple[SlotPool, list[_Placed]]] = {}
    for item in placed:
        pools.setdefault(item.pool.room, (item.pool, []))[1].append(item)
    return list(pools.values())


def _runs(placed: Sequence[_Placed]) -> list[list[_Placed]]:
    """Split blocks into runs of near slots in one pool and of like length; long blocks are alone."""
    runs: list[list[_Placed]] = []
    open_runs: dict[tuple[int, bool], list[_Placed]] = {}
    for item in sorted(placed, key=lambda item: item.slot):
        key = (item.pool.room, item.count <= _NARROW)
        run = open_runs.get(key)
        gap = item.slot - run[-1].slot - 1 if run else 0
        if item.count > _LONGEST_GROUPED:
            runs.append([item])
        elif run is not None and gap * item.pool.room <= _GAP_TOKENS:
            run.append(item)
        else:
            open_runs[key] = [item]
            runs.append(open_runs[key])
    return runs
