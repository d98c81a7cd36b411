from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from draftwire.cloud_verifier.engine.prompt_shares import LEAST_SHARE, PromptShares
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from hypothesis import given
from hypothesis import strategies as st

from .test_block_sizes import stream_of
from .test_scheduler import Nobody


def share_prompts(streams: Sequence[VerifierStream], *, tokens: int) -> list[int]:
    return PromptShares().share(streams, tokens=tokens)


def test_prompts_share_equally_by_owner_and_first_come_within_one() -> None:
    one, two = Nobody(), Nobody()
    streams = [stream_of(prompt=100, owner=one), stream_of(prompt=100, owner=one), stream_of(prompt=100, owner=two)]
    assert share_prompts(streams, tokens=80) == [40, 0, 40]


def test_what_one_owner_does_not_need_goes_to_the_others() -> None:
    streams = [stream_of(prompt=10), stream_of(prompt=100)]
    assert share_prompts(streams, tokens=80) == [10, 70]
    assert share_prompts(streams, tokens=1000) == [10, 100]


@given(
    wanted=st.lists(st.integers(2, 50), min_size=1, max_size=6),
    owners=st.lists(st.integers(0, 2), min_size=6, max_size=6),
    tokens=st.integers(0, 200),
)
def test_all_tokens_are_given_and_none_that_is_not_wanted(wanted: list[int], owners: list[int], tokens: int) -> None:
    people = [Nobody() for _ in range(3)]
    streams = [stream_of(prompt=count, owner=people[who]) for count, who in zip(wanted, owners, strict=False)]
    given_ = share_prompts(streams, tokens=tokens)
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    assert sum(given_) == min(tokens, sum(wanted))


@pytest.mark.parametrize("count", [1, 3])
def test_an_owner_with_many_streams_gets_no_more_than_one_with_one(count: int) -> None:
    greedy, modest = Nobody(), Nobody()
    streams = [*(stream_of(prompt=90, owner=greedy) for _ in range(count)), stream_of(prompt=90, owner=modest)]
    assert share_prompts(streams, tokens=60)[-1] == 30


def read(shares: PromptShares, streams: Sequence[VerifierStream], *, tokens: int) -> list[int]:
    """One step's parts, read."""
    parts = shares.share(streams, tokens=tokens)
    for stream, part in zip(streams, parts, strict=True):
        stream.cached += part
    return parts


@pytest.mark.parametrize(("tokens", "others"), [(256, 1), (256, 20), (256, 29), (256, 200), (16, 6), (16, 16), (3, 5)])
def test_a_short_prompt_is_read_soon_beside_any_number_of_long_ones(tokens: int, others: int) -> None:
    shares, streams = PromptShares(), [stream_of(prompt=8000) for _ in range(others)]
    for _ in range(49):
        read(shares, streams, tokens=tokens)
    newcomer = stream_of(prompt=LEAST_SHARE)
    streams.append(newcomer)
    for _ in range(2 if tokens >= LEAST_SHARE else 6 * (others + 1)):
        read(shares, streams, tokens=tokens)
    assert newcomer.cached == LEAST_SHARE


@given(
    owners=st.lists(st.integers(0, 6), min_size=1, max_size=20),
    tenants=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    tokens=st.integers(1, 300),
)
def test_every_client_has_its_turn(owners: list[int], tenants: list[int], tokens: int) -> None:
    """In twice as many steps as there are tenants, times the clients of the largest, at the latest."""
    people = [Nobody() for _ in range(7)]
    for person, tenant in zip(people, tenants, strict=True):
        person.tenant = Tenant(name=str(tenant))
    shares, streams = PromptShares(), [stream_of(prompt=10**4, owner=people[who]) for who in owners]
    for _ in range(2 * 3 * 7):
        read(shares, streams, tokens=tokens)
    assert {id(stream.owner) for stream in streams if stream.cached} == {id(stream.owner) for stream in streams}


def test_a_tenant_with_many_clients_gets_no_more_than_one_with_one() -> None:
    hog, modest = Tenant(name="hog"), Tenant(name="modest")
    crowd = [Nobody() for _ in range(5)]
    for owner in crowd:
        owner.tenant = hog
    single = Nobody()
    single.tenant = modest
    streams = [*(stream_of(prompt=900, owner=owner) for owner in crowd), stream_of(prompt=900, owner=single)]
    parts = share_prompts(streams, tokens=200)
    assert (sum(parts[:-1]), parts[-1]) == (100, 100)


def test_addresses_of_one_tenant_share_equally() -> None:
    crowd, single = [Nobody() for _ in range(5)], Nobody()
    single.address = "elsewhere"
    streams = [*(stream_of(prompt=900, owner=owner) for owner in crowd), stream_of(prompt=900, owner=single)]
    parts = share_prompts(streams, tokens=200)
    assert (sum(parts[:-1]), parts[-1]) == (100, 100)


def test_no_share_is_smaller_than_what_is_worth_a_stream() -> None:
    shares, streams = PromptShares(), [stream_of(prompt=1000) for _ in range(10)]
    for _ in range(8):
        parts = read(shares, streams, tokens=50)
        assert sum(parts) == 50
        assert sorted(parts)[:7] == [0] * 7
        assert min(part for part in parts if part) >= LEAST_SHARE
    assert all(stream.cached for stream in streams)


@pytest.mark.parametrize("fresh", ["streams of one", "owners", "tenants"])
def test_a_trickle_of_short_prompts_holds_no_long_one_up_for_good(fresh: str) -> None:
    shares, hog, reader = PromptShares(), Nobody(), stream_of(prompt=4000)
    reader.owner.tenant = Tenant(name="reader")

    def short() -> VerifierStream:
        owner = hog if fresh == "streams of one" else Nobody()
        owner.tenant = Tenant(name=f"hog {next(count)}" if fresh == "tenants" else "reader")
        return stream_of(prompt=LEAST_SHARE, owner=owner)

    count = itertools.count()
    flood = [short(), short()]
    for _ in range(600):
        read(shares, [reader, *flood], tokens=LEAST_SHARE)
        flood = [stream if stream.cached < LEAST_SHARE else short() for stream in flood]
    assert reader.cached >= 600 * LEAST_SHARE // 8
    assert next(count) > 100 or fresh != "tenants"  # and those were read as well
