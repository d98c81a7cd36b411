"""Whether there is room for one more socket, and which goes if there is not."""

from __future__ import annotations

from collections import Counter

from draftwire.cloud_verifier.service.lobby import Lobby
from hypothesis import given
from hypothesis import strategies as st


def lobby_with(*sockets: str, spare: int = 2) -> Lobby[str]:
    """Sockets that have come at 0 s, 1 s and so on; the first letter of each is its address."""
    lobby = Lobby[str](spare=spare, spare_of_group=1, rest=1.0, patience=10.0)
    for at, socket in enumerate(sockets):
        lobby.enter(socket, socket[0], float(at))
    return lobby


def test_guests_leave_places_to_others() -> None:
    lobby = lobby_with("a1", "a2", "b1")
    assert (lobby.is_full(2), lobby.is_full(1)) == (False, True)
    lobby.seat("a1")
    assert (lobby.is_full(2), lobby.is_full(1)) == (False, True)
    lobby.seat("a2")
    assert not lobby.is_full(2)  # two guests, and one of two spare places taken
    lobby.enter("b2", "b", 9.0)
    assert lobby.is_full(2)
    assert lobby.is_full(0)
    lobby.leave("b2")
    assert not lobby.is_full(0)  # guests who are too many since a reload take no spare places
    assert len(lobby) == 3


def test_an_address_has_places_of_its_own() -> None:
    lobby = lobby_with("a1", "a2", "b1")
    assert not lobby.is_full_of("a", None)
    assert not lobby.is_full_of("a", 2)
    assert lobby.is_full_of("a", 1)
    assert not lobby.is_full_of("b", 1)
    assert not lobby.is_full_of("c", 1)


def test_nobody_goes_before_time() -> None:
    lobby = lobby_with("a1", "a2")
    assert lobby.next_to_go(9.9) is None
    assert lobby.next_to_go(10.0) == "a1"
    lobby.ask("a1", 5.0)
    assert lobby.next_to_go(10.0) is None
    assert lobby.next_to_go(11.0) == "a2"


def test_whoever_has_its_answer_goes_first_and_a_guest_never() -> None:
    lobby = lobby_with("a1", "a2", "b1")
    lobby.seat("a1")
    lobby.rest("b1", 50.0)
    assert lobby.next_to_go(50.5) == "a2"
    assert lobby.next_to_go(51.0) == "b1"
    lobby.seat("b1")
    lobby.leave("a2")
    assert lobby.next_to_go(99.0) is None


def test_the_address_that_has_most_gives_way() -> None:
    lobby = lobby_with("a1", "b1", "b2")
    assert lobby.next_to_go(50.0) == "b1"
    assert lobby.next_to_go(50.0, group="a") == "a1"
    assert lobby.next_to_go(50.0, group="c") is None
    assert lobby.next_to_go(10.5) == "a1"  # the others are too young


def test_whoever_has_left_is_not_brought_back() -> None:
    lobby = lobby_with("a1")
    lobby.leave("a1")
    lobby.leave("a1")
    for move in (lobby.ask, lobby.rest):
        move("a1", 1.0)
    lobby.seat("a1")
    assert len(lobby) == 0
    assert lobby.next_to_go(99.0) is None


@given(st.lists(st.tuples(st.sampled_from(["enter", "ask", "seat", "rest", "leave"]), st.integers(0, 5)), max_size=60))
def test_numbers_follow_every_move(moves: list[tuple[str, int]]) -> None:
    lobby = Lobby[int](spare=3, spare_of_group=2, rest=0.0, patience=0.0)
    where: dict[int, str] = {}
    for now, (move, socket) in enumerate(moves):
        if move == "enter":
            if socket not in where:
                lobby.enter(socket, str(socket % 2), now)
                where[socket] = move
            continue
        getattr(lobby, move)(*([socket] if move in ("seat", "leave") else [socket, now]))
        if move == "leave":
            where.pop(socket, None)
        elif socket in where:
            where[socket] = move
    seated = Counter(str(each % 2) for each, state in where.items() if state == "seat")
    others = Counter(str(each % 2) for each, state in where.items() if state != "seat")
    assert len(lobby) == len(where)
    for most in range(6):
        assert lobby.is_full(most) == (others.total() >= 3 + max(0, most - seated.total()))
        for group in "01":
            assert lobby.is_full_of(group, most) == (others[group] >= 2 + max(0, most - seated[group]))
    shown_out = []
    while (leaver := lobby.next_to_go(1e9)) is not None:
        shown_out.append(leaver)
        lobby.leave(leaver)
    assert sorted(shown_out) == sorted(each for each, state in where.items() if state != "seat")
    resting = [where[each] == "rest" for each in shown_out]
    assert resting == sorted(resting, reverse=True)
