from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from draftwire.cloud_verifier.engine.block_sizes import LEAST_SHARE, choose_drafts, share_prompts
from draftwire.cloud_verifier.engine.stream import VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.protocol.messages import Open
from draftwire.protocol.sampling import SamplingParams
from hypothesis import given
from hypothesis import strategies as st

from .test_scheduler import Nobody


class Fixed(VerifierStream):
    """A stream whose chances are given."""

    chances: Sequence[float] = ()

    def survival(self) -> list[float]:
        return list(self.chances)


def stream_of(
    *chances: float, prompt: int = 1, owner: Nobody | None = None, rejection: bool = False, max_tokens: int = 50
) -> Fixed:
    params = SamplingParams(temperature=0.7, mode="rejection") if rejection else SamplingParams()
    tokens = tuple(range(prompt))
    request = Open(stream=1, token_ids=tokens, prompt_length=prompt, params=params, max_tokens=max_tokens, seed=1)
    stream = Fixed(owner=owner or Nobody(), request=request, sequence=list(tokens), opened_at=0.0)
    stream.chances = chances
    return stream


def line(fixed: float, slope: float) -> Callable[[int], float]:
    return lambda tokens: fixed + slope * tokens


def choose(*streams: Fixed, room: int = 100, most: int = 16, seconds: Callable[[int], float | None]) -> list[int]:
    return choose_drafts(streams, room=room, most=most, tokens=len(streams), seconds=seconds)


def test_where_tokens_are_free_all_are_taken_but_hopeless_ones() -> None:
    assert choose(stream_of(0.9, 0.5, 0.1), stream_of(0.3), seconds=line(1.0, 0.0)) == [3, 1]
    assert choose(stream_of(0.9, 0.0, 0.0), seconds=line(1.0, 0.0)) == [1]


def test_until_steps_are_known_all_that_fit_are_taken() -> None:
    assert choose(stream_of(0.9, 0.5, 0.1), seconds=lambda _: None) == [3]
    assert choose(stream_of(0.9, 0.5, 0.1), room=2, seconds=lambda _: None) == [2]


def test_the_budget_goes_to_the_likeliest_of_all_streams() -> None:
    sizes = choose(stream_of(0.9, 0.8, 0.1), stream_of(0.85, 0.2), stream_of(0.05), room=3, seconds=line(1.0, 0.0))
    assert sizes == [2, 1, 0]


def test_a_token_is_taken_while_it_raises_the_rate() -> None:
    """One stream, a step of 1 + 0.1 M: 0.9 is worth 0.1 of a step of 1.1, 0.05 is not worth 0.1 of 1.2 for 1.9."""
    assert choose(stream_of(0.9, 0.05), seconds=line(1.0, 0.1)) == [1]
    crowd = [stream_of(0.3) for _ in range(20)]
    assert sum(choose(*crowd, seconds=line(1.0, 0.1))) == 0  # 0.3 / 20 < 0.1 / 3
    assert sum(choose(*crowd, seconds=line(10.0, 0.1))) == 20


def test_by_rejection_the_first_is_tested_in_any_case() -> None:
    assert choose(stream_of(0.01, 0.01, rejection=True), seconds=line(1.0, 1.0)) == [1]
    assert choose(stream_of(0.9, 0.9, rejection=True), seconds=line(1.0, 0.01)) == [2]


def test_no_more_than_a_block_or_the_answer_takes() -> None:
    assert choose(stream_of(*[0.9] * 9), most=4, seconds=line(1.0, 0.0)) == [4]
    assert choose(stream_of(*[0.9] * 9, max_tokens=3), seconds=line(1.0, 0.0)) == [2]
    assert choose(stream_of(0.9, max_tokens=1), seconds=line(1.0, 0.0)) == [0]
    assert choose(stream_of(0.9), room=-3, seconds=line(1.0, 0.0)) == [0]


@given(
    chances=st.lists(st.lists(st.floats(0, 1), max_size=5).map(lambda row: sorted(row, reverse=True)), max_size=4),
    fixed=st.floats(0.1, 10),
    slope=st.floats(0, 1),
)
def test_no_other_choice_of_as_many_or_one_more_has_a_better_rate(
    chances: list[list[float]], fixed: float, slope: float
) -> None:
    streams = [stream_of(*row) for row in chances]
    if not streams:
        return
    seconds = line(fixed, slope)
    sizes = choose(*streams, seconds=seconds)

    def rate(taken: Sequence[int]) -> float:
        expected = len(streams) + sum(sum(row[:count]) for row, count in zip(chances, taken, strict=True))
        return expected / seconds(len(streams) + sum(taken))

    best = rate(sizes)
    for index, row in enumerate(chances):
        for other in {sizes[index] - 1, sizes[index] + 1} & set(range(len(row) + 1)):
            assert rate([*sizes[:index], other, *sizes[index + 1 :]]) <= best * (1 + 1e-9)


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


def read(streams: Sequence[Fixed], *, tokens: int, step: int) -> list[int]:
    """One step's parts, read."""
    parts = share_prompts(streams, tokens=tokens)
    for stream, part in zip(streams, parts, strict=True):
        stream.cached += part
        stream.read_at = step if part else stream.read_at
    return parts


@pytest.mark.parametrize(("tokens", "others"), [(256, 1), (256, 20), (256, 29), (256, 200), (16, 6), (16, 16), (3, 5)])
def test_a_short_prompt_is_read_soon_beside_any_number_of_long_ones(tokens: int, others: int) -> None:
    streams = [stream_of(prompt=8000) for _ in range(others)]
    for step in range(1, 50):
        read(streams, tokens=tokens, step=step)
    newcomer = stream_of(prompt=LEAST_SHARE)
    streams.append(newcomer)
    for step in range(50, 52 if tokens >= LEAST_SHARE else 50 + 6 * (others + 1)):
        read(streams, tokens=tokens, step=step)
    assert newcomer.cached == LEAST_SHARE


@given(
    owners=st.lists(st.integers(0, 6), min_size=1, max_size=20),
    tenants=st.lists(st.integers(0, 2), min_size=7, max_size=7),
    tokens=st.integers(1, 300),
)
def test_every_client_has_its_turn(owners: list[int], tenants: list[int], tokens: int) -> None:
    """In as many steps as there are tenants, times the clients of the largest, at the latest."""
    people = [Nobody() for _ in range(7)]
    for person, tenant in zip(people, tenants, strict=True):
        person.tenant = Tenant(name=str(tenant))
    streams = [stream_of(prompt=10**4, owner=people[who]) for who in owners]
    for step in range(1, 1 + 3 * 7):
        read(streams, tokens=tokens, step=step)
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
    streams = [stream_of(prompt=100) for _ in range(10)]
    first = read(streams, tokens=50, step=1)
    assert sorted(first) == [0] * 7 + [16, 17, 17] or sorted(first) == [0] * 7 + [16, 16, 18]
    second = read(streams, tokens=50, step=2)
    assert not any(one and two for one, two in zip(first, second, strict=True))
