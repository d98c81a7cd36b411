from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from draftwire.cloud_verifier.engine.stream import Owner, Party, VerifierStream
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.engine.waiting_line import WaitingLine
from draftwire.protocol.messages import Message, Open
from draftwire.protocol.sampling import SamplingParams


class Nobody(Owner):
    def __init__(self, name: str, address: str) -> None:
        self.tenant = Tenant(name=name)
        self.address = address

    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


def stream_of(
    name: str, *, at: float = 0.0, seated_before: bool = False, address: str = "", owner: Owner | None = None
) -> VerifierStream:
    request = Open(stream=1, token_ids=(1,), prompt_length=1, params=SamplingParams(), max_tokens=1, seed=1)
    owner = owner or Nobody(name, address)
    return VerifierStream(owner=owner, request=request, sequence=[1], opened_at=at, seated_before=seated_before)


def next_of(line: WaitingLine, **running: int) -> VerifierStream | None:
    places = Counter[Party]({(Tenant(name=name),): count for name, count in running.items()})
    return next(iter(line.in_order(places, may_run=lambda _: True)), None)


def test_who_came_first_is_next() -> None:
    line = WaitingLine(most=5, patience=1.0)
    first, second = stream_of("a", at=1.0), stream_of("a", at=2.0)
    line.join(first)
    line.join(second)
    assert next_of(line) is first
    line.leave(first)
    assert next_of(line) is second
    line.leave(second)
    line.leave(second)
    assert next_of(line) is None


def test_who_has_fewest_places_is_next() -> None:
    line = WaitingLine(most=5, patience=1.0)
    many, few = stream_of("many", at=1.0), stream_of("few", at=2.0)
    line.join(many)
    line.join(few)
    assert next_of(line, many=2, few=1) is few
    assert next_of(line, many=1, few=1) is many


def test_who_gave_a_place_up_is_next_of_those_with_as_many_places() -> None:
    line = WaitingLine(most=0, patience=1.0)
    again = stream_of("many", at=9.0, seated_before=True)
    line.join(stream_of("others", at=1.0))
    line.join(stream_of("many", at=2.0))
    line.join(again)
    assert next_of(line, many=2, others=2) is again
    assert next_of(line, many=0, others=1) is again


def test_who_gave_a_place_up_leaves_the_next_to_who_has_fewer() -> None:
    line = WaitingLine(most=0, patience=1.0)
    few, again = stream_of("few", at=10.0), stream_of("many", at=1.0, seated_before=True)
    line.join(again)
    line.join(few)
    order = line.in_order(Counter({(Tenant(name="many"),): 19}), may_run=lambda _: True)
    assert list(map(id, order)) == [id(few), id(again)]


def test_who_lacks_memory_may_be_passed_until_half_its_patience_is_over() -> None:
    line = WaitingLine(most=5, patience=4.0)
    new, again = stream_of("a", at=10.0), stream_of("a", at=10.0, seated_before=True)
    assert not line.holds_up(new, now=11.9)
    assert line.holds_up(new, now=12.0)
    assert line.holds_up(again, now=10.0)


def test_who_may_not_run_is_passed_over() -> None:
    line = WaitingLine(most=5, patience=1.0)
    barred, free = stream_of("barred", at=1.0), stream_of("free", at=2.0)
    line.join(barred)
    line.join(free)
    assert line.in_order(Counter(), may_run=lambda stream: stream is not barred) == [free]


def test_a_line_too_long_loses_the_newest_of_the_tenant_that_fills_it() -> None:
    line = WaitingLine(most=3, patience=1.0)
    greedy = [stream_of("greedy", at=float(index)) for index in range(3)]
    for stream in greedy:
        line.join(stream)
    assert line.excess() is None
    modest = stream_of("modest", at=9.0)
    line.join(modest)
    assert line.excess() is greedy[-1]
    line.leave(greedy[-1])
    assert line.excess() is None
    another = stream_of("greedy", at=10.0)
    line.join(another)
    assert line.excess() is another
    assert modest in line


def test_within_a_tenant_addresses_share_and_within_those_connections() -> None:
    hog = Nobody("app", "a")
    hogs = [stream_of("app", at=float(index), owner=hog) for index in range(3)]
    neighbour, elsewhere = stream_of("app", at=8.0, address="a"), stream_of("app", at=9.0, address="b")
    line = WaitingLine(most=4, patience=1.0)
    for stream in (*hogs[1:], neighbour, elsewhere):
        line.join(stream)
    order = line.in_order(Counter(hogs[0].parties), may_run=lambda _: True)
    assert [id(stream) for stream in order] == list(map(id, (elsewhere, neighbour, *hogs[1:])))
    line.join(stream_of("app", at=10.0, address="b"))
    excess = line.excess()
    assert excess is hogs[2]


def test_who_gave_a_place_up_is_never_too_many_and_never_overdue() -> None:
    line = WaitingLine(most=0, patience=1.0)
    line.join(stream_of("a", seated_before=True))
    assert line.excess() is None
    assert line.overdue(now=100.0) == []
    assert line.next_overdue() is None


def test_patience_ends() -> None:
    line = WaitingLine(most=5, patience=2.0)
    early, late = stream_of("a", at=10.0), stream_of("b", at=11.0)
    line.join(late)
    line.join(early)
    assert line.next_overdue() == 12.0
    assert line.overdue(now=11.9) == []
    assert line.overdue(now=12.0) == [early]
    assert set(map(id, line.overdue(now=13.0))) == {id(early), id(late)}
