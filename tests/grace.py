"""How long the tests wait for what does not take long, and how they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

__all__ = ["GRACE", "wait_for"]

T = TypeVar("T")

GRACE = 60.0
"""Seconds that nothing here takes unless it hangs."""


async def wait_for(awaitable: Awaitable[T]) -> T:
    """Await with a net below."""
    async with asyncio.timeout(GRACE):
        return await awaitable
