"""Who is inside, by key and by address."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.service.crowd import Crowd, Guest, address_group


def test_counts_follow_who_comes_and_goes() -> None:
    crowd = Crowd()
    guests = [Guest("alice", "1.1.1.1"), Guest("alice", "2.2.2.2"), Guest("bob", "1.1.1.1")]
    for guest in guests:
        crowd.enter(guest)
    assert (len(crowd), crowd.of_name("alice"), crowd.of_group("1.1.1.1")) == (3, 2, 2)
    assert set(crowd) == set(guests)
    crowd.leave(guests[0])
    assert (len(crowd), crowd.of_name("alice"), crowd.of_group("1.1.1.1")) == (2, 1, 1)
    for guest in guests[1:]:
        crowd.leave(guest)
    assert not crowd._names
    assert not crowd._groups


def test_a_guest_is_dismissed_once_before_or_after_it_listens() -> None:
    early, late = Guest("a", "x"), Guest("b", "x")
    heard: list[str] = []
    early.when_dismissed(heard.append)
    assert heard == []
    for guest in (early, late):
        guest.dismiss("first")
        guest.dismiss("second")
    assert heard == ["first"]
    late.when_dismissed(heard.append)
    assert heard == ["first", "first"]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix:", "unix:"),
    ],
)
def test_what_is_limited_as_one(address: str, group: str) -> None:
    assert address_group(address) == group
