"""The draft on this device: loaded off the event loop, run in a thread of its own, used by one stream at a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from ..protocol.acceptance import Proposal
from ..protocol.errors import DrafterError
from .bundle import DraftBundle
from .drafter import Drafter, verify_model_files
from .onnx_runtime import DEFAULT_PROVIDERS
from .proposer import Proposer

__all__ = ["Device", "Drafted"]

T = TypeVar("T")

_PREFILL_PIECE = 256
_NICENESS = 5


@dataclass(frozen=True, slots=True)
class Drafted:
    """One drafting step: the proposal, its confidence byte, and what it cost in seconds."""

    proposal: Proposal
    confidence: int
    seconds: float
    cpu_seconds: float


class Device:
    """A draft bundle, and its model once loaded.

    The bundle's small files are read by :meth:`open`; the model is hashed and loaded in the background, while text
    already streams from the cloud.
    """

    def __init__(
        self, bundle: DraftBundle, *, threads: int | None = None, providers: Sequence[str] = DEFAULT_PROVIDERS
    ) -> None:
        self.bundle = bundle
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="draftwire-draft", initializer=_give_way)
        self._free = asyncio.Lock()
        self._closed = False
        self._loading = asyncio.get_running_loop().run_in_executor(
            self._executor, _load_drafter, bundle, threads, tuple(providers)
        )
        self._loading.add_done_callback(_observe)

    @classmethod
    async def open(
        cls, folder: Path | str, *, threads: int | None = None, providers: Sequence[str] = DEFAULT_PROVIDERS
    ) -> Device:
        """Read a bundle's manifest and tokenizer, and start to load its model.

        Raises:
            BundleError: there is no usable bundle; a fault of the model itself shows in :meth:`drafter`.
        """
        bundle = await asyncio.to_thread(DraftBundle.load, folder, verify=False)
        return cls(bundle, threads=threads, providers=providers)

    @property
    def loaded(self) -> bool:
        """Whether loading has ended, well or not."""
        return self._loading.done()

    @property
    def fault(self) -> BaseException | None:
        """What loading failed with."""
        if not self._loading.done() or self._loading.cancelled():
            return None
        return self._loading.exception()

    async def drafter(self) -> Drafter:
        """The loaded model; DraftwireError when it cannot be loaded."""
        return await asyncio.shield(self._loading)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Drafter]:
        """Use of the model until the block ends: its KV cache holds one sequence."""
        drafter = await self.drafter()
        async with self._free:
            yield drafter

    async def read(self, drafter: Drafter, tokens: Sequence[int]) -> None:
        """Make the drafter know ``tokens``, piece by piece, so that an abandoned stream frees it soon."""
        for end in [*range(_PREFILL_PIECE, len(tokens), _PREFILL_PIECE), len(tokens)]:
            await self._run(partial(drafter.sync, tokens[:end]))

    async def draft(self, drafter: Drafter, tokens: Sequence[int], proposer: Proposer) -> Drafted:
        """Draw a proposal for the position after ``tokens``."""
        return await self._run(partial(_draft, drafter, tokens, proposer))

    async def _run(self, work: Callable[[], T]) -> T:
        """Run in the drafting thread; when cancelled, wait for it, so that the drafter is idle when it is freed."""
        if self._closed:
            raise DrafterError("the client is closed")
        future = asyncio.get_running_loop().run_in_executor(self._executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    async def close(self) -> None:
        """Free the thread; a load in progress is let finish."""
        self._closed = True
        await asyncio.wait([self._loading])
        self._executor.shutdown(wait=False)


def _give_way() -> None:
    """Let the app's other threads go first: a commit must not wait for a core that is drafting.

    Where threads have a priority of their own (Linux, Android), this one and those that onnxruntime starts from it
    count as batch work of a lower one: whatever else wakes goes first, though drafting is not starved. A lower
    priority alone let a waking thread wait for some milliseconds, which shows in the time to the first token.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            thread = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread, _NICENESS)
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _load_drafter(bundle: DraftBundle, threads: int | None, providers: tuple[str, ...]) -> Drafter:
    verify_model_files(bundle.folder, bundle.manifest)
    return bundle.load_drafter(threads=threads, providers=providers)


def _observe(loading: asyncio.Future[Drafter]) -> None:
    """A load that fails while nobody waits for it is no unhandled error; whoever asks later is told."""
    if not loading.cancelled():
        loading.exception()


def _draft(drafter: Drafter, tokens: Sequence[int], proposer: Proposer) -> Drafted:
    started, cpu_started = time.perf_counter(), drafter.cpu_seconds
    if len(tokens) >= drafter.context_length:
        raise DrafterError(f"the draft's context of {drafter.context_length} tokens is full")
    drafter.sync(tokens)
    logits = drafter.feed(tokens[-1:])
    proposal, confidence = proposer.propose(logits, tokens)
    return Drafted(proposal, confidence, time.perf_counter() - started, drafter.cpu_seconds - cpu_started)
