"""Table targets that can be paced, watched and held, and what they generate by the definition."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.protocol.noise import coupled_choice
from draftwire.protocol.sampling import SamplingParams, TokenHistory, greedy_token, process_logits
from numpy.typing import NDArray

from ..grace import GRACE

__all__ = ["HeldTarget", "PacedTarget", "RecordingTarget", "endless_table", "reference_tokens"]


def endless_table(**options: Any) -> TableTarget:
    """A table target whose text never ends by itself."""
    return TableTarget(**{"vocabulary_size": 24, "seed": 5, "eos_bias": -1e4, **options})


class PacedTarget(TableTarget):
    """A table target whose steps take ``seconds``, as a model's do, so that drafts can be in time."""

    def __init__(self, *, seconds: float, **options: Any) -> None:
        super().__init__(**options)
        self._seconds = seconds

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        time.sleep(self._seconds)
        return super().step(blocks)


class RecordingTarget(TableTarget):
    """A table target that counts the tokens it is given."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fed = 0

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self.fed += sum(len(block.tokens) for block in blocks)
        return super().step(blocks)


class HeldTarget(TableTarget):
    """A table target whose steps wait for leave. ``closed`` lists the slots freed."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._leave = threading.Semaphore(0)
        self._free = threading.Event()
        self._changed = threading.Condition()
        self.entered = 0
        self.steps = 0
        self.opened = 0
        self.closed: list[int] = []

    def allow(self, steps: int) -> None:
        """Let so many steps happen."""
        for _ in range(steps):
            self._leave.release()

    def let_go(self) -> None:
        """Let every step happen from now on."""
        self._free.set()
        self._leave.release()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds, checked whenever a step begins or ends or a stream comes or goes."""

        def wait() -> bool:
            with self._changed:
                return self._changed.wait_for(holds, GRACE)

        assert await asyncio.to_thread(wait), "it never came true"

    async def step_until(self, holds: Callable[[], bool]) -> None:
        """Let one step after another happen until something holds; some stream must be open all the while."""
        while not holds():
            entered = self.entered
            self.allow(1)
            await self.until(lambda before=entered: self.entered > before or holds())  # type: ignore[misc]

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        self._note("entered")
        if not self._free.is_set():
            self._leave.acquire()
        rows = super().step(blocks)
        self._note("steps")
        return rows

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """See :meth:`Target.open`."""
        super().open(stream, capacity, room=room)
        self._note("opened")

    def close(self, stream: int) -> None:
        """See :meth:`Target.close`."""
        super().close(stream)
        with self._changed:
            self.closed.append(stream)
            self._changed.notify_all()

    def _note(self, counter: str) -> None:
        with self._changed:
            setattr(self, counter, getattr(self, counter) + 1)
            self._changed.notify_all()


def reference_tokens(
    target: TableTarget, prompt: Sequence[int], count: int, *, seed: int = 0, **params: Any
) -> tuple[int, ...]:
    """What the target alone generates, greedy or coupled, by the definition and without an engine."""
    sampling = SamplingParams(**params)
    tokens, history = list(prompt), TokenHistory(prompt)
    while len(tokens) < len(prompt) + count:
        logits = target.logits_after(tokens[-2:])
        if sampling.greedy:
            token = greedy_token(logits, sampling, history)
        else:
            token = coupled_choice(process_logits(logits, sampling, history), seed, len(tokens))
        tokens.append(token)
        history.append(token)
        if token in target.info.eos_ids:
            break
    return tuple(tokens[len(prompt) :])
