"""Sockets that say nothing."""

from __future__ import annotations

from draftwire.cloud_verifier.service.lobby import Lobby


def test_the_silent_are_shown_out_after_a_while_and_those_who_spoke_are_not() -> None:
    lobby = Lobby[str]()
    assert lobby.look(["a", "b"], 0.0, patience=10.0, most=9) == []
    assert lobby.look(["a", "b", "c"], 10.0, patience=10.0, most=9) == []
    assert lobby.look(["a", "c"], 10.5, patience=10.0, most=9) == ["a"]  # "b" has asked for something
    assert lobby.look(["c"], 20.5, patience=10.0, most=9) == ["c"]


def test_the_oldest_go_when_there_are_too_many() -> None:
    lobby = Lobby[str]()
    lobby.look(["old"], 0.0, patience=10.0, most=2)
    lobby.look(["old", "b"], 1.0, patience=10.0, most=2)
    assert lobby.look(["b", "c", "old"], 2.0, patience=10.0, most=2) == ["old"]


def test_a_socket_that_left_is_forgotten() -> None:
    lobby = Lobby[str]()
    lobby.look(["a"], 0.0, patience=10.0, most=2)
    lobby.look([], 1.0, patience=10.0, most=2)
    assert lobby.look(["a"], 100.0, patience=10.0, most=2) == []
