"""Continuous drafting: keep the path ahead of what is committed, and send it as it grows.

    ask the controller -> send what is due -> draft one token -> again

Drafting goes on while verification is in flight. A commit that arrives during a drafting step is applied at once by
the stream; the step's proposal is then kept if its path survived, and dropped if not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from ..protocol.clock import clock_now
from ..protocol.errors import ConnectionLostError, DrafterError, DraftwireError
from ..protocol.messages import Draft
from .device import Device
from .drafter import Drafter
from .gamma.controller import Controller, Round
from .generation import Generation
from .proposer import Proposer
from .stats import Stats

__all__ = ["PAUSE_SECONDS", "DraftLoop", "is_paused"]

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""How often a device that must not draft now is asked again."""


class DraftLoop:
    """Drafts for one stream until it ends.

    Args:
        controller: says how far to draft, and when to send.
        send: sends a DRAFT frame and returns its bytes.
        paused: asked before each step; while it says yes nothing is drafted (battery, heat).
        degraded: told why drafting has ended early.
    """

    def __init__(
        self,
        device: Device,
        generation: Generation,
        proposer: Proposer,
        controller: Controller,
        stats: Stats,
        *,
        send: Callable[[Draft], Awaitable[int]],
        paused: Callable[[], bool],
        degraded: Callable[[str], None],
    ) -> None:
        self._device = device
        self._generation = generation
        self._proposer = proposer
        self._controller = controller
        self._stats = stats
        self._send = send
        self._paused = paused
        self._degraded = degraded
        self._changed = asyncio.Event()

    def committed(self, round_: Round) -> None:
        """Something was committed, and applied to the generation."""
        self._controller.committed(round_)
        self._changed.set()

    async def run(self) -> None:
        """Draft until cancelled. A fault of the draft ends drafting, never the generation."""
        try:
            async with self._device.lease() as drafter:
                await self._device.read(drafter, self._generation.context())
                while True:
                    await self._step(drafter)
        except ConnectionLostError:  # the stream hears of it as well
            return
        except DraftwireError as error:
            self._degraded(str(error))
        except Exception as error:
            logger.exception("drafting failed")
            self._degraded(f"drafting failed: {type(error).__name__}")

    async def _step(self, drafter: Drafter) -> None:
        self._changed.clear()
        decision = self._controller.decide(self._generation.outlook(time.monotonic()))
        if decision.send:
            await self._transmit(continues=decision.continues)
        if decision.draft and is_paused(self._paused):
            await self._transmit(continues=False)
            await self._rest()
            await asyncio.sleep(PAUSE_SECONDS)
        elif decision.draft:
            await self._draft(drafter)
        elif not decision.send:  # otherwise the controller decides anew, with nothing unsent
            await self._transmit(continues=False)  # only where more was promised
            if decision.rests:
                await self._rest()
            await self._changed.wait()

    async def _draft(self, drafter: Drafter) -> None:
        generation = self._generation
        path = generation.path
        drafted = await self._device.draft(drafter, generation.context(), self._proposer)
        self._stats.draft_steps += 1
        self._stats.draft_seconds += drafted.seconds
        self._stats.draft_cpu_seconds += drafted.cpu_seconds
        self._controller.drafted(drafted.seconds)
        generation.add(path, drafted.proposal, drafted.confidence)

    async def _transmit(self, *, continues: bool) -> None:
        frame = self._generation.take_frame(sent_at=clock_now(time.monotonic()), continues=continues)
        if frame is not None:
            await self._send_frame(frame)

    async def _rest(self) -> None:
        frame = self._generation.take_rest(sent_at=clock_now(time.monotonic()))
        if frame is not None:
            await self._send_frame(frame)

    async def _send_frame(self, frame: Draft) -> None:
        self._stats.bytes_up += await self._send(frame)
        self._stats.sent_frames += 1
        self._stats.sent_tokens += len(frame.token_ids)


def is_paused(hook: Callable[[], bool]) -> bool:
    """Ask the app's own function; DrafterError where that fails."""
    try:
        return bool(hook())
    except Exception as error:
        raise DrafterError(f"pause_drafting raised {type(error).__name__}: {error}") from error
