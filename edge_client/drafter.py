"""The draft model on the device: feed it tokens, read the logits of the next one, roll back what was rejected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import (
    BundleCorruptError,
    DrafterError,
    DraftwireError,
    InvalidParameterError,
    NonFiniteLogitsError,
)
from ..protocol.manifest import Manifest
from .onnx_runtime import DEFAULT_PROVIDERS, CachedGraph, load_graph

__all__ = ["Drafter", "verify_model_files"]


class Drafter:
    """A loaded draft model and the KV cache of one sequence.

    ``length`` tokens are in the cache; the drafter remembers which. Every method that fails leaves it at a length
    it can be used from. Use it from one thread at a time: a call made while another runs raises ``DrafterError``.
    """

    def __init__(self, graph: CachedGraph, manifest: Manifest) -> None:
        """Wrap an opened graph; users call :meth:`load`."""
        self._graph = graph
        self._tokens: list[int] = []
        self._running = threading.Lock()
        # One thread runs in the caller, so the caller's own clock is exact. More of them are only on the process's
        # clock, which also counts what the rest of the app does meanwhile.
        self._cpu_clock: Callable[[], float] = time.thread_time if graph.threads == 1 else time.process_time
        self.manifest = manifest
        self.cpu_seconds = 0.0
        self.tokens_fed = 0

    @classmethod
    def load(
        cls,
        folder: Path | str,
        *,
        threads: int | None = None,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        verify: bool = True,
    ) -> Drafter:
        """Load a draft bundle's model and run one token through it, so that the first real one is not slower.

        Args:
            folder: the bundle.
            threads: cores to use; default half of those the process may use. Threads sleep while waiting.
            providers: onnxruntime execution providers in order of preference.
            verify: compare every file with the manifest's hashes first.

        Raises:
            BundleNotFoundError, BundleCorruptError: the bundle is not whole.
            InvalidParameterError: ``threads`` or ``providers`` is out of range.
            DrafterError: onnxruntime cannot run the model.
            NonFiniteLogitsError: the model's weights are broken.
        """
        manifest = Manifest.load(folder)
        if verify:
            verify_model_files(folder, manifest)
        drafter = cls(load_graph(folder, manifest, threads=threads, providers=providers), manifest)
        drafter.feed([0])
        drafter.rollback(0)
        drafter.cpu_seconds, drafter.tokens_fed = 0.0, 0
        return drafter

    @property
    def length(self) -> int:
        """Tokens in the KV cache."""
        return len(self._tokens)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens in the KV cache."""
        return tuple(self._tokens)

    @property
    def context_length(self) -> int:
        """Most tokens the KV cache may hold."""
        return self.manifest.context_length

    @property
    def vocabulary_size(self) -> int:
        """Token ids that mean something, and the width of the logits returned."""
        return self.manifest.vocabulary.size

    @property
    def threads(self) -> int:
        """Threads one operator may use."""
        return self._graph.threads

    @property
    def providers(self) -> tuple[str, ...]:
        """Execution providers in use."""
        return self._graph.providers

    def sync(self, tokens: Sequence[int]) -> None:
        """Make the cache hold ``tokens`` but the last, which is for :meth:`feed`.

        What the cache shares with ``tokens`` stays, the rest is rolled back, and what is missing is fed.

        Raises:
            InvalidParameterError: ``tokens`` is empty or has an id out of range.
            DrafterError: ``tokens`` do not fit the context, or the model failed.
        """
        if tokens and self._tokens == tokens[:-1]:  # nothing to do while a path grows, and checking costs
            return
        ids = self._check(tokens)
        self._check_room(len(ids))
        with self._exclusive():
            wanted = ids.tolist()[:-1]
            kept = _common_length(self._tokens, wanted)
            self._cut(kept)
            for _ in self._run(ids[kept:-1]):
                pass

    def feed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append ``tokens`` and return the logits after the last of them, [vocabulary_size], the caller's to keep.

        Raises:
            InvalidParameterError: ``tokens`` is empty or has an id out of range.
            DrafterError: the context is full, or the model failed.
            NonFiniteLogitsError: the logits cannot be drawn from; nothing was appended.
        """
        row: NDArray[np.float32] = self._feed(tokens, every_row=False)[0]
        return row

    def feed_rows(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append ``tokens`` and return the logits after each of them, [len(tokens), vocabulary_size]."""
        return self._feed(tokens, every_row=True)

    def rollback(self, length: int) -> None:
        """Forget all but the first ``length`` tokens.

        Raises:
            InvalidParameterError: ``length`` is negative or beyond the cache.
        """
        if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= self.length:
            raise InvalidParameterError("length", f"must be from 0 to {self.length}, not {length!r}")
        with self._exclusive():
            self._cut(length)

    def _feed(self, tokens: Sequence[int], *, every_row: bool) -> NDArray[np.float32]:
        """Logits after the last token, [1, vocabulary_size], or after each. Appends all tokens or none."""
        ids = self._check(tokens)
        self._check_room(self.length + len(ids))
        with self._exclusive():
            before = self.length
            try:
                blocks = [block.copy() if every_row else block[-1:] for block in self._run(ids)]
                rows = np.concatenate(blocks) if every_row else blocks[-1]
                logits: NDArray[np.float32] = rows[:, : self.vocabulary_size].copy()
                return _checked(logits)
            except DraftwireError:
                self._cut(before)
                raise

    def _run(self, ids: NDArray[np.int64]) -> Iterator[NDArray[np.float32]]:
        """Feed in pieces the graph takes; yields each piece's logits [piece, logits_size], valid until the next."""
        step = self._graph.max_rows
        for start in range(0, len(ids), step):
            piece = ids[start : start + step]
            began = self._cpu_clock()
            logits = self._graph.run(piece)
            self.cpu_seconds += self._cpu_clock() - began
            self.tokens_fed += len(piece)
            self._tokens.extend(piece.tolist())
            yield logits

    def _cut(self, length: int) -> None:
        self._graph.rollback(length)
        del self._tokens[length:]

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise DrafterError("the drafter is in use by another thread; give each thread its own")
        try:
            yield
        finally:
            self._running.release()

    def _check(self, tokens: Sequence[int]) -> NDArray[np.int64]:
        if not len(tokens):
            raise InvalidParameterError("tokens", "must hold at least one token id")
        ids = np.asarray(tokens)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise InvalidParameterError("tokens", "must be a sequence of whole numbers")
        bad = ids[(ids < 0) | (ids >= self.vocabulary_size)]
        if len(bad):
            raise InvalidParameterError("tokens", f"id {bad[0]} is outside 0 to {self.vocabulary_size - 1}")
        checked: NDArray[np.int64] = ids.astype(np.int64, copy=False)
        return checked

    def _check_room(self, needed: int) -> None:
        if needed > self.context_length:
            raise DrafterError(
                f"the draft's context holds {self.context_length} tokens and {needed} are needed; "
                "go on without drafting"
            )


def verify_model_files(folder: Path | str, manifest: Manifest) -> None:
    """Check the hashes of every file listed, and that the graph and its weights are among them.

    Raises:
        BundleNotFoundError: a file is missing.
        BundleCorruptError: a file differs from its hash, or has none.
    """
    manifest.verify(folder)
    graph = manifest.graph.file
    present = {path.name for path in Path(folder).glob(f"{graph}*")}
    unlisted = sorted((present | {graph}) - manifest.files.keys())
    if unlisted:
        raise BundleCorruptError(f"draft bundle {folder}: its manifest has no hash of {unlisted[0]}; export it again")


def _checked(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    # The maximum is NaN if any entry is, and -inf if none is finite.
    if not np.isfinite(logits.max(axis=-1)).all():
        raise NonFiniteLogitsError("the draft model produced logits that are not finite; export it again")
    return logits


def _common_length(held: list[int], wanted: list[int]) -> int:
    shorter = min(len(held), len(wanted))
    if held[:shorter] == wanted[:shorter]:
        return shorter
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(held, wanted, strict=False)))
