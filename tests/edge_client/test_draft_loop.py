"""What ends drafting, and whether the caller hears of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from draftwire.edge_client.device import Drafted
from draftwire.edge_client.draft_loop import DraftLoop, is_paused
from draftwire.edge_client.gamma.fixed import FixedController
from draftwire.edge_client.generation import Generation
from draftwire.edge_client.stats import Stats
from draftwire.protocol.acceptance import Proposal
from draftwire.protocol.errors import ConnectionLostError, DrafterError
from draftwire.protocol.messages import Draft


class FakeDevice:
    """Drafts the same token for ever, or fails."""

    def __init__(self, fault: Exception | None = None) -> None:
        self._fault = fault

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[None]:
        yield

    async def read(self, *_: Any) -> None:
        pass

    async def draft(self, *_: Any) -> Drafted:
        if self._fault is not None:
            raise self._fault
        return Drafted(Proposal(5), 0, 0.001, 0.001)


async def told_by(
    device: FakeDevice, *, fault: Exception | None = None, paused: Callable[[], bool] = lambda: False
) -> list[str]:
    """Run a loop whose frames cannot be sent, until it ends by itself."""
    told: list[str] = []

    async def send(_: Draft) -> int:
        assert fault is not None
        raise fault

    generation = Generation(stream=1, prompt_ids=(1, 2), max_tokens=20, stop_ids=(), most_ahead=4)
    loop = DraftLoop(
        device,  # type: ignore[arg-type]
        generation,
        None,  # type: ignore[arg-type]
        FixedController(4),
        Stats(),
        send=send,
        paused=paused,
        degraded=told.append,
    )
    await loop.run()
    return told


async def test_a_lost_connection_ends_it_in_silence() -> None:
    """The stream hears of that as well, and drafting begins again on the next one: nothing is degraded."""
    assert await told_by(FakeDevice(), fault=ConnectionLostError("broke off")) == []


async def test_a_draft_that_fails_is_told_of() -> None:
    assert await told_by(FakeDevice(DrafterError("its context is full"))) == ["its context is full"]
    assert await told_by(FakeDevice(ZeroDivisionError())) == ["drafting failed: ZeroDivisionError"]


async def test_a_hook_that_fails_is_told_of() -> None:
    def hook() -> bool:
        raise KeyError("battery")

    (told,) = await told_by(FakeDevice(), paused=hook)
    assert told.startswith("pause_drafting raised KeyError")
    with pytest.raises(DrafterError, match="pause_drafting"):
        is_paused(hook)
