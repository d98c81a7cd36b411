"""Who is let in: keys, origins, routes and numbers, by headers alone."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

import pytest
from draftwire.cloud_verifier.engine.tenant import ANYBODY, Tenant
from draftwire.cloud_verifier.service.config import Config, DoorLimits, KeyRules, RouteRules
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.http import Refusal, Visitor
from draftwire.cloud_verifier.service.keys import hash_key, new_key

ALICE, ALICE_NEW, BOB = new_key(), new_key(), new_key()
KEYS = {
    "alice": KeyRules(digests=(hash_key(ALICE), hash_key(ALICE_NEW)), max_streams=3),
    "bob": KeyRules(digests=(hash_key(BOB),)),
}


class Case:
    """A doorkeeper on a clock set by hand."""

    def __init__(self, *, keys: Any = None, **config: Any) -> None:
        limits = config.pop("limits", {})
        self.now = 0.0
        self.refused: list[str] = []
        self.config = Config(keys=KEYS if keys is None else keys, limits=DoorLimits(**limits), **config)
        self.door = Doorkeeper(self.config, refused=self.refused.append, clock=lambda: self.now)

    def admit(self, key: str | None = ALICE, *, remote: str = "10.0.0.1", **more: Any) -> Visitor:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return self.door.admit({**headers, **more.pop("headers", {})}, remote=remote, **more)

    def status(self, key: str | None = ALICE, **more: Any) -> int:
        with pytest.raises(Refusal) as caught:
            self.admit(key, **more)
        return caught.value.status


def test_without_keys_everybody_is_let_in_whatever_they_show() -> None:
    case = Case(keys={}, limits={"max_streams_per_key": 5})
    for key in (None, ALICE):
        visitor = case.admit(key)
        assert visitor.tenant == Tenant(name=ANYBODY.name, address="10.0.0.1")
        assert visitor.tenant.max_streams == 5
        assert visitor.key is None


def test_a_key_opens_the_door_in_its_owners_name() -> None:
    case = Case(limits={"max_streams_per_key": 8})
    for key, name, most in ((ALICE, "alice", 3), (ALICE_NEW, "alice", 3), (BOB, "bob", 8)):
        visitor = case.admit(key)
        assert (visitor.tenant.name, visitor.tenant.max_streams) == (name, most)
        assert visitor.allowance.tenant == visitor.tenant
    headers = {"authorization": f"bearer   {ALICE} "}
    assert case.door.admit(headers, remote="").tenant.name == "alice"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": ALICE},
        {"authorization": "Bearer"},
        {"authorization": f"Basic {ALICE}"},
        {"authorization": f"Bearer {ALICE}x"},
        {"authorization": f"Bearer {ALICE} {BOB}"},
        {"x-api-key": ALICE},
        {"cookie": f"key={ALICE}"},
    ],
)
def test_anything_else_is_401(headers: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    with caplog.at_level(logging.DEBUG):
        assert case.status(None, headers=headers) == 401
    assert case.refused == ["unauthorized"]
    assert ALICE not in caplog.text
    assert "10.0.0.1" in caplog.text


def test_failures_are_slowed_down_per_address_and_harm_nobody_with_a_key(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    assert [case.status("wrong") for _ in range(10)] == [401] * 10
    with caplog.at_level(logging.DEBUG):
        for _ in range(100):
            with pytest.raises(Refusal) as caught:
                case.admit("wrong")
            assert caught.value.status == 429
            assert caught.value.retry_after is not None
    assert len(caplog.records) == 10  # a flood fills no log
    assert case.admit(ALICE).tenant.name == "alice"  # from the same address
    assert case.status("wrong", remote="10.0.0.2") == 401
    assert case.status("wrong", remote="2001:db8::1") == 401
    case.now += 6.0
    assert [case.status("wrong"), case.status("wrong")] == [401, 429]


def test_addresses_without_end_are_not_remembered_without_end() -> None:
    case = Case()
    for number in range(6000):
        case.status("wrong", remote=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(case.door._failures) <= 4096


@pytest.mark.parametrize("name", ["api_key", "API-Key", "key", "token", "access_token", "authorization"])
def test_a_key_in_the_url_is_refused_even_beside_one_in_the_header(name: str) -> None:
    case = Case()
    with pytest.raises(Refusal, match="Authorization: Bearer") as caught:
        case.admit(ALICE, query={name: "dw_x"})
    assert caught.value.status == 400
    assert "dw_x" not in str(caught.value)


def test_a_key_in_the_url_is_known_by_its_value_too(caplog: pytest.LogCaptureFixture) -> None:
    case = Case()
    with caplog.at_level(logging.DEBUG):
        assert case.status(ALICE, query={"q": BOB}) == 400
    assert BOB not in caplog.text
    assert case.admit(ALICE, query={"q": "anything"}).tenant.name == "alice"


def test_origins() -> None:
    case = Case(origins=frozenset({"https://app.example"}))
    host = {"host": "api.example"}
    assert case.status(ALICE, headers={**host, "origin": "https://evil.example"}) == 403
    assert case.refused == ["origin"]
    good = {**host, "origin": "https://app.example"}
    assert case.admit(ALICE, headers=good)
    assert case.door.cross_origin(good)["Access-Control-Allow-Origin"] == "https://app.example"
    assert case.door.preflight(good, methods="POST")["Access-Control-Allow-Methods"] == "POST"
    bad = {**host, "origin": "https://evil.example"}
    assert case.door.cross_origin(bad) == case.door.cross_origin(host) == {}
    with pytest.raises(Refusal):
        case.door.preflight(bad, methods="POST")


def test_a_name_that_points_here_is_a_stranger_where_no_key_is_asked_for() -> None:
    headers = {"host": "evil.example", "origin": "http://evil.example"}
    assert Case(keys={}).status(None, headers=headers) == 403
    assert Case().admit(ALICE, headers=headers)


def test_routes_must_be_known_and_only_key_holders_learn_which_are() -> None:
    case = Case(routes={"chat": RouteRules()})
    assert case.admit(route="chat").route == "chat"
    assert case.admit().route == ""
    assert case.status(route="code") == 404
    assert case.status(None, route="code") == 401


def test_request_ids_are_kept_where_they_are_fit_for_a_log() -> None:
    case = Case()
    assert case.admit(headers={"x-request-id": "a.B-1:2_3"}).request_id == "a.B-1:2_3"
    made = {case.admit(headers={"x-request-id": each}).request_id for each in ("", "a b", "a\nb", "x" * 65, "\x1b[0m")}
    assert len(made) == 5
    assert all(len(each) == 16 for each in made)


# --- numbers ------------------------------------------------------------------------------------------------------


def test_connections_in_all_by_key_and_by_address() -> None:
    case = Case(limits={"max_connections": 5, "max_connections_per_key": 3, "max_connections_per_address": 2})

    def refused(key: str, remote: str) -> tuple[int, str]:
        with (
            pytest.raises(Refusal, match="try again later") as caught,
            case.door.connected(case.admit(key, remote=remote)),
        ):
            pass
        assert caught.value.retry_after is not None
        return caught.value.status, case.refused[-1]

    with ExitStack() as stack:

        def enter(key: str, remote: str) -> None:
            stack.enter_context(case.door.connected(case.admit(key, remote=remote)))

        enter(ALICE, "1.1.1.1")
        enter(BOB, "1.1.1.1")
        assert refused(ALICE, "1.1.1.1") == (429, "max_connections_per_address")
        enter(ALICE_NEW, "2.2.2.2")
        enter(ALICE, "3.3.3.3")
        assert refused(ALICE, "4.4.4.4") == (429, "max_connections_per_key")
        enter(BOB, "4.4.4.4")
        assert case.door.connections == 5
        assert refused(BOB, "5.5.5.5") == (503, "max_connections")
    assert case.door.connections == 0
    with case.door.connected(case.admit(ALICE)):
        assert case.door.connections == 1


def test_connections_a_minute_from_one_address() -> None:
    case = Case(limits={"connections_per_minute": 2})
    for _ in range(2):
        with case.door.connected(case.admit()):
            pass
    with pytest.raises(Refusal, match="more than 2 connections a minute") as caught, case.door.connected(case.admit()):
        pass
    assert (caught.value.status, caught.value.retry_after) == (429, 30.0)
    with case.door.connected(case.admit(remote="10.0.0.2")):
        pass
    case.now += 30.0
    with case.door.connected(case.admit()):
        pass


def test_without_keys_what_is_per_key_is_per_address() -> None:
    case = Case(keys={}, limits={"max_connections_per_key": 1, "requests_per_minute": 1})
    with case.door.connected(case.admit(None)):
        with pytest.raises(Refusal, match="of one address"), case.door.connected(case.admit(None)):
            pass
        with case.door.connected(case.admit(None, remote="10.0.0.2")):
            pass


# --- set anew -----------------------------------------------------------------------------------------------------


def test_whoever_came_with_a_removed_key_is_asked_to_go() -> None:
    case = Case()
    heard: list[str] = []
    with ExitStack() as stack:
        for name, key in (("old", ALICE), ("new", ALICE_NEW), ("bob", BOB)):
            guest = stack.enter_context(case.door.connected(case.admit(key)))
            guest.when_dismissed(lambda why, name=name: heard.append(f"{name}: {why}"))  # type: ignore[misc]
        case.door.replace(Config(keys={"alice": KeyRules(digests=(hash_key(ALICE_NEW),)), "bob": KEYS["bob"]}))
        assert heard == ["old: the API key is no longer valid; connect with another"]
        assert case.status(ALICE) == 401
        assert case.admit(ALICE_NEW).tenant.name == "alice"


def test_whoever_came_before_there_were_keys_is_asked_to_go() -> None:
    case = Case(keys={})
    heard: list[str] = []
    with case.door.connected(case.admit(None)) as guest:
        guest.when_dismissed(heard.append)
        case.door.replace(Config())
        assert heard == []
        case.door.replace(Config(keys=KEYS))
        assert len(heard) == 1


def test_limits_set_anew_hold_for_connections_that_are_open() -> None:
    case = Case()
    visitor = case.admit(ALICE)
    rules = KeyRules(digests=KEYS["alice"].digests, max_streams=1)
    case.door.replace(Config(keys={"alice": rules}, limits=DoorLimits(idle_seconds=1.0)))
    tenant = visitor.allowance.tenant
    assert tenant == visitor.tenant
    assert tenant.max_streams == 1
    idleness = case.door.idleness()
    idleness.note(greeted=True, streams=False)
    case.now += 1.0
    assert idleness.remaining <= 0


def test_a_trace_context_comes_along_cut_to_its_size() -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    keeper = Doorkeeper()
    assert keeper.admit({"traceparent": parent}, remote="x").traceparent == parent
    assert keeper.admit({"traceparent": parent + "x" * 9000}, remote="x").traceparent == parent
    assert keeper.admit({}, remote="x").traceparent == ""


def test_one_of_a_thing_is_not_told_as_several() -> None:
    for limits, text in (
        ({"max_connections": 1}, "the one connection is in use; try again later"),
        ({"max_connections_per_key": 1}, "the one connection of this API key is in use; try again later"),
        ({"max_connections_per_address": 1}, "the one connection of one address is in use; try again later"),
        ({"connections_per_minute": 1}, "more than 1 connection a minute from one address; try again later"),
    ):
        case = Case(limits=limits)
        visitor = case.admit()
        with case.door.connected(visitor), pytest.raises(Refusal) as caught, case.door.connected(visitor):
            pass
        assert str(caught.value) == text


def test_bodies_are_judged_by_what_is_declared() -> None:
    case = Case()
    for length, most in ((0, 0), (0, 10), (10, 10)):
        case.door.check_body("GET '/x'", length, most=most)
    for length, most, status, why, text in (
        (1, 0, 400, "unexpected_body", "GET '/x' takes no body; leave it out"),
        (11, 10, 413, "body_too_large", "the request is larger than 10 bytes; shorten it"),
    ):
        case.refused.clear()
        with pytest.raises(Refusal, match=text) as caught:
            case.door.check_body("GET '/x'", length, most=most)
        assert caught.value.status == status
        assert case.refused == [why]
