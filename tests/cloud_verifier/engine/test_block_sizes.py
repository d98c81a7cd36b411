from __future__ import annotations

from collections.abc import Callable, Sequence

from draftwire.cloud_verifier.engine.block_sizes import choose_drafts
from draftwire.cloud_verifier.engine.stream import VerifierStream
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
