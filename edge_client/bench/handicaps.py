"""Drafts made bad on purpose: one that is always wrong and sure of itself, one that is slower than the target."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...protocol.acceptance import Proposal
from ..bundle import DraftBundle
from ..client import AsyncEdgeClient
from ..device import Device, Drafted
from ..drafter import Drafter
from ..proposer import Proposer

__all__ = ["Handicap", "HandicappedClient", "HandicappedDevice"]

_SUREST, _LEAST_SURE = 0, 8
"""Confidence bytes of a useless draft: probabilities from 1 down to 0.7."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handicap:
    """What is wrong with a draft.

    Attributes:
        useless: it proposes tokens at random, and says that it is sure of them.
        steps: a drafted token takes at least so many steps of the target.
    """

    useless: bool = False
    steps: float = 0.0


class HandicappedDevice(Device):
    """A device whose draft costs what it costs and proposes no better than the handicap allows.

    ``step_seconds`` is the target's step, to be told once it is known; until then nothing is slower.
    """

    def __init__(self, bundle: DraftBundle, handicap: Handicap, *, seed: int = 0, **options: Any) -> None:
        """``options`` are those of every device."""
        super().__init__(bundle, **options)
        self._handicap = handicap
        self._random = random.Random(seed)
        self.step_seconds = 0.0

    async def draft(self, drafter: Drafter, tokens: Sequence[int], proposer: Proposer) -> Drafted:
        """Draft, and make it worse."""
        started = time.perf_counter()
        drafted = await super().draft(drafter, tokens, proposer)
        if self._handicap.useless:
            guess = Proposal(self._random.randrange(drafter.vocabulary_size))
            drafted = replace(drafted, proposal=guess, confidence=self._random.randint(_SUREST, _LEAST_SURE))
        missing = self._handicap.steps * self.step_seconds - (time.perf_counter() - started)
        if missing > 0:
            # In the drafting thread, which a slow model would keep busy as well; the core stays free.
            await self._run(partial(time.sleep, missing))
            drafted = replace(drafted, seconds=time.perf_counter() - started)
        return drafted


class HandicappedClient(AsyncEdgeClient):
    """A client that knows nothing of its draft's handicap. It needs a draft."""

    def __init__(self, url: str, handicap: Handicap, **options: Any) -> None:
        """``options`` are those of every client."""
        super().__init__(url, **options)
        self._handicap = handicap

    async def _open_device(self, folder: Path) -> None:
        bundle = await asyncio.to_thread(DraftBundle.load, folder, verify=False)
        self._device = HandicappedDevice(
            bundle, self._handicap, threads=self._settings.threads, providers=self._settings.providers
        )
        await self._device.drafter()
