"""Whether the service lives (``/healthz``), and whether it should be sent work (``/readyz``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from .http import Call, Reply, Route

__all__ = ["Health", "Watched"]


class Watched(Protocol):
    """What health asks of the engine."""

    @property
    def running(self) -> bool:
        """Whether its thread is alive."""

    @property
    def draining(self) -> bool:
        """Whether it takes no new streams."""

    @property
    def busy_since(self) -> float | None:
        """When the step in progress began (monotonic seconds); None between steps."""


class Health:
    """Answers from the event loop, which no model ever blocks.

    Args:
        engine: watched.
        stall_seconds: a step that takes longer makes the service unready until it ends; streams go on waiting for it.
    """

    def __init__(
        self, engine: Watched, *, stall_seconds: float = 30.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._stall_seconds = stall_seconds
        self._clock = clock

    def routes(self) -> list[Route]:
        """The endpoints."""
        return [
            Route(method="GET", path="/healthz", handler=self._healthz, public=True),
            Route(method="GET", path="/readyz", handler=self._readyz, public=True),
        ]

    def problem(self) -> str | None:
        """Why no work should be sent here now; None where it may."""
        if not self._engine.running:
            return "the engine is not running"
        if self._engine.draining:
            return "the verifier is shutting down"
        since = self._engine.busy_since
        if since is not None and self._clock() - since > self._stall_seconds:
            return f"the target's step has taken more than {self._stall_seconds:g} s"
        return None

    async def _healthz(self, call: Call) -> Reply:
        del call
        return Reply(body=b"ok\n")

    async def _readyz(self, call: Call) -> Reply:
        del call
        problem = self.problem()
        return Reply(body=b"ready\n") if problem is None else Reply(body=f"{problem}\n".encode(), status=503)
