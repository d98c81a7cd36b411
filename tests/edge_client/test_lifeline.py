"""The search for a verifier, with connections and a clock made for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from draftwire.edge_client.backoff import Backoff
from draftwire.edge_client.lifeline import Lifeline
from draftwire.protocol.errors import (
    AuthenticationError,
    BusyError,
    ConnectionLostError,
    DraftwireError,
    ErrorCode,
    InvalidParameterError,
    VerifierRefusedError,
    VerifierUnreachableError,
    VersionMismatchError,
)

DOWN = VerifierUnreachableError("nobody there")
NOT_READY = VerifierRefusedError("not ready (503)", retryable=True)


class FakeConnection:
    def __init__(self, url: str) -> None:
        self.url = url
        self.usable = True
        self.ended = False
        self.served = False
        self.closed = False

    def lose(self) -> None:
        self.usable, self.ended = False, True

    async def close(self) -> None:
        self.lose()
        self.closed = True


class World:
    """Verifiers that answer as told, and a clock that only sleepers move."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers: dict[str, DraftwireError | None] = {}
        self.tried: list[tuple[float, str]] = []
        self.slept: list[float] = []
        self.wake: Callable[[], None] = lambda: None
        self.gate: asyncio.Event | None = None

    async def connect(self, url: str) -> Any:
        self.tried.append((self.now, url))
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.get(url)
        if answer is not None:
            raise answer
        return FakeConnection(url)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.wake()
        await asyncio.sleep(0)

    def lifeline(self, *urls: str, reconnect_seconds: float | None = None) -> Lifeline:
        return Lifeline(
            urls or ("a",),
            self.connect,
            reconnect_seconds=reconnect_seconds,
            backoff=Backoff(draw=lambda: 1.0),
            clock=lambda: self.now,
            sleep=self.sleep,
        )

    @property
    def urls(self) -> list[str]:
        return [url for _, url in self.tried]


@pytest.fixture
def world() -> World:
    return World()


async def served(lifeline: Lifeline) -> FakeConnection:
    connection: Any = await lifeline.connection()
    connection.served = True
    return connection  # type: ignore[no-any-return]


# --- the first connection ---------------------------------------------------------------------------------------------


async def test_a_first_search_is_one_look_at_each_address(world: World) -> None:
    world.answers = {"a": DOWN, "b": NOT_READY}
    with pytest.raises(VerifierUnreachableError, match="none of the 2 verifiers") as caught:
        await world.lifeline("a", "b").connection()
    assert "nobody there" in str(caught.value)
    assert "503" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert world.urls == ["a", "b"]
    assert world.slept == []


async def test_a_refusing_address_is_passed_over(world: World) -> None:
    world.answers = {"a": VerifierRefusedError("404"), "b": VersionMismatchError("v2")}
    lifeline = world.lifeline("a", "b", "c")
    connection = await lifeline.connection()
    assert connection.url == "c"
    assert await lifeline.connection() is connection
    assert world.urls == ["a", "b", "c"]


async def test_the_error_of_one_address_is_the_error(world: World) -> None:
    world.answers = {"a": DOWN}
    with pytest.raises(VerifierUnreachableError) as caught:
        await world.lifeline().connection()
    assert caught.value is DOWN


async def test_time_that_was_asked_for_is_for_a_first_connection_as_well(world: World) -> None:
    world.answers = {"a": DOWN}
    world.wake = lambda: world.answers.clear() if world.now > 1.0 else None
    told: list[DraftwireError] = []
    connection = await world.lifeline(reconnect_seconds=10.0).connection(told.append)
    assert connection.url == "a"
    assert world.slept == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert told == [DOWN] * 4


# --- what is never tried again ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reconnect_seconds", [None, 0.0, 30.0])
@pytest.mark.parametrize("error", [AuthenticationError("the key"), InvalidParameterError("url", "bad")], ids=str)
async def test_a_bad_key_is_one_attempt(world: World, reconnect_seconds: float | None, error: DraftwireError) -> None:
    world.answers = {"a": error}
    with pytest.raises(type(error)):
        await world.lifeline("a", "b", reconnect_seconds=reconnect_seconds).connection()
    assert world.urls == ["a"]


async def test_addresses_that_all_refuse_for_good_end_it_at_once(world: World) -> None:
    world.answers = {"a": VerifierRefusedError("404"), "b": VersionMismatchError("v2")}
    with pytest.raises(VerifierRefusedError, match="404, and v2"):
        await world.lifeline("a", "b", reconnect_seconds=30.0).connection()
    assert world.urls == ["a", "b"]


async def test_an_address_that_asked_for_patience_is_waited_for_whatever_the_others_say(world: World) -> None:
    world.answers = {
        "a": VerifierRefusedError("429", retryable=True, retry_after=2.0),
        "b": VerifierRefusedError("404"),
    }
    world.wake = lambda: world.answers.pop("a", None)
    connection = await world.lifeline("a", "b", reconnect_seconds=30.0).connection()
    assert connection.url == "a"
    assert world.urls == ["a", "b", "a"]  # who refused for good is asked once
    assert sum(world.slept) >= 2.0


async def test_a_look_that_comes_a_moment_too_early_ends_nothing(world: World) -> None:
    world.answers = {"a": VerifierRefusedError("429", retryable=True, retry_after=2.0)}
    lifeline = world.lifeline("a", reconnect_seconds=30.0)
    early = iter([0.01])
    sleep = lifeline._sleep

    async def too_short(seconds: float) -> None:
        await sleep(seconds - next(early, 0.0))

    lifeline._sleep = too_short
    world.wake = lambda: world.answers.pop("a", None) if len(world.slept) > 1 else None
    assert (await lifeline.connection()).url == "a"


# --- a loss -----------------------------------------------------------------------------------------------------------


async def test_after_a_loss_the_next_address_comes_first_and_the_lost_one_last(world: World) -> None:
    lifeline = world.lifeline("a", "b", "c")
    (await served(lifeline)).lose()
    world.answers = {"b": DOWN, "c": DOWN}
    assert (await lifeline.connection()).url == "a"
    assert world.urls == ["a", "b", "c", "a"]
    assert world.slept == pytest.approx([0.1])  # jitter before the first look: everybody lost it at this moment


async def test_the_search_is_bounded(world: World) -> None:
    lifeline = world.lifeline("a", "b")
    (await served(lifeline)).lose()
    world.answers = {"a": DOWN, "b": NOT_READY}
    world.tried.clear()
    with pytest.raises(VerifierUnreachableError):
        await lifeline.connection()
    assert world.now == pytest.approx(30.0)
    assert 10 < len(world.tried) / 2 < 20
    assert max(world.slept) == 5.0


async def test_a_search_that_failed_does_not_keep_the_next_one_from_trying(world: World) -> None:
    lifeline = world.lifeline()
    (await served(lifeline)).lose()
    world.answers = {"a": DOWN}
    with pytest.raises(VerifierUnreachableError):
        await lifeline.connection()
    world.slept.clear()
    world.answers.clear()
    assert (await lifeline.connection()).usable
    assert world.slept == []


async def test_without_time_a_loss_is_still_one_look(world: World) -> None:
    lifeline = world.lifeline(reconnect_seconds=0.0)
    (await served(lifeline)).lose()
    assert (await lifeline.connection()).usable
    assert world.slept == [0.0]


async def test_a_connection_in_name_only_makes_the_waits_grow(world: World) -> None:
    lifeline = world.lifeline()
    for _ in range(4):
        connection: Any = await lifeline.connection()
        connection.lose()
    await lifeline.connection()
    assert world.slept == pytest.approx([0.1, 0.2, 0.4, 0.8])


async def test_one_that_served_or_lasted_makes_them_short_again(world: World) -> None:
    lifeline = world.lifeline()
    for prove in (
        lambda connection: setattr(connection, "served", True),
        lambda _: setattr(world, "now", world.now + 6.0),
    ):
        for _ in range(3):
            connection: Any = await lifeline.connection()
            connection.lose()
        connection = await lifeline.connection()
        prove(connection)
        connection.lose()
        world.slept.clear()
        connection = await lifeline.connection()
        assert world.slept == pytest.approx([0.1])
        connection.served = True
        connection.lose()


async def test_a_verifier_that_names_a_time_is_left_alone_until_then(world: World) -> None:
    lifeline = world.lifeline("a", "b", reconnect_seconds=30.0)
    world.answers = {"a": VerifierRefusedError("503", retryable=True, retry_after=4.0), "b": DOWN}
    with pytest.raises(VerifierUnreachableError):
        await lifeline.connection()
    tried_a = [at for at, url in world.tried if url == "a"]
    assert len(tried_a) < 8
    assert all(later - sooner >= 4.0 for sooner, later in itertools.pairwise(tried_a))
    assert len([url for url in world.urls if url == "b"]) > 10


async def test_where_every_verifier_names_a_time_the_first_is_waited_for(world: World) -> None:
    busy = BusyError("full", code=ErrorCode.BUSY, retry_after=4.0)
    world.answers = {"a": busy, "b": VerifierRefusedError("503", retryable=True, retry_after=9.0)}
    lifeline = world.lifeline("a", "b", reconnect_seconds=6.0)
    world.wake = world.answers.clear
    assert (await lifeline.connection()).url == "a"
    assert world.slept == pytest.approx([4.1])


async def test_a_time_beyond_the_budget_ends_it_at_once(world: World) -> None:
    world.answers = {"a": BusyError("full", code=ErrorCode.BUSY, retry_after=31.0)}
    with pytest.raises(BusyError):
        await world.lifeline(reconnect_seconds=30.0).connection()
    assert world.slept == []


# --- together ---------------------------------------------------------------------------------------------------------


async def test_all_who_ask_share_one_search(world: World) -> None:
    lifeline = world.lifeline()
    world.gate = asyncio.Event()
    asking = [asyncio.create_task(lifeline.connection()) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    world.gate.set()
    connections = await asyncio.gather(*asking)
    assert len({id(connection) for connection in connections}) == 1
    assert world.urls == ["a"]


async def test_all_who_ask_share_its_failure(world: World) -> None:
    lifeline = world.lifeline(reconnect_seconds=2.0)
    world.answers = {"a": DOWN}
    outcomes = await asyncio.gather(*(lifeline.connection() for _ in range(20)), return_exceptions=True)
    assert outcomes == [DOWN] * 20
    assert len(world.tried) == len(world.slept) + 1 < 10


async def test_one_who_leaves_does_not_end_it_for_the_others(world: World) -> None:
    lifeline = world.lifeline()
    world.gate = asyncio.Event()
    leaver, stayer = (asyncio.create_task(lifeline.connection()) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    world.gate.set()
    assert (await stayer).usable


async def test_the_last_who_leaves_ends_it_and_a_newcomer_begins_anew(world: World) -> None:
    lifeline = world.lifeline()
    world.gate = asyncio.Event()
    before = len(asyncio.all_tasks())
    leaver = asyncio.create_task(lifeline.connection())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    newcomer = asyncio.create_task(lifeline.connection())
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before + 2  # the newcomer, and one search
    world.gate.set()
    assert (await newcomer).usable
    assert world.urls == ["a", "a"]
    assert len(asyncio.all_tasks()) == before


async def test_closing_ends_a_search_and_tells_who_waits(world: World) -> None:
    lifeline = world.lifeline()
    world.gate = asyncio.Event()
    asking = asyncio.create_task(lifeline.connection())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await lifeline.close()
    with pytest.raises(ConnectionLostError, match="closed"):
        await asking
    with pytest.raises(InvalidParameterError, match="closed"):
        await lifeline.connection()


async def test_closing_closes_a_retired_connection_too(world: World) -> None:
    lifeline = world.lifeline("a", "b")
    first = await served(lifeline)
    first.usable = False  # retired: its verifier goes away, and a stream still runs on it
    second: Any = await lifeline.connection()
    assert (second.url, lifeline.last) == ("b", second)
    assert not first.closed
    await lifeline.close()
    assert first.closed
    assert second.closed
