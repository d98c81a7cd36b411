"""The alarm wakes in time. How late is the machine's matter; early it never is."""

from __future__ import annotations

import asyncio
import time

from draftwire.edge_client.wan_alarm import Alarm

from ..grace import GRACE


async def test_the_alarm_wakes_everyone_and_never_early() -> None:
    alarm = Alarm()
    started = time.monotonic()
    woken: list[int] = []

    async def sleep(number: int) -> None:
        when = started + 0.002 * number
        await alarm.until(when)
        assert time.monotonic() >= when
        woken.append(number)

    numbers = [7, 1, 9, 3, 3, 5, 0]
    async with asyncio.timeout(GRACE):
        await asyncio.gather(*(sleep(number) for number in numbers))
    assert sorted(woken) == sorted(numbers)
    alarm.stop()


async def test_the_alarm_forgets_who_gave_up() -> None:
    alarm = Alarm()
    now = time.monotonic()
    given_up = asyncio.create_task(alarm.until(now + 0.02))
    other = asyncio.create_task(alarm.until(now + 0.03))
    await asyncio.sleep(0)
    given_up.cancel()
    async with asyncio.timeout(GRACE):
        await other
    assert given_up.cancelled()
    alarm.stop()
