"""Which verifier to try next."""

from __future__ import annotations

from draftwire.edge_client.addresses import Addresses

URLS = ("a", "b", "c")


def test_they_are_tried_in_the_order_given() -> None:
    assert Addresses(URLS).due(0.0) == ["a", "b", "c"]


def test_a_search_begins_with_the_last_good_one() -> None:
    addresses = Addresses(URLS)
    addresses.good("b")
    assert addresses.due(0.0) == ["b", "c", "a"]


def test_a_lost_one_comes_last() -> None:
    addresses = Addresses(URLS)
    addresses.good("b")
    addresses.lost("b")
    assert addresses.due(0.0) == ["c", "a", "b"]
    addresses.lost("c")
    assert addresses.due(0.0) == ["a", "b", "c"]


def test_one_that_asked_for_time_gets_it() -> None:
    addresses = Addresses(URLS)
    addresses.rest("a", 5.0)
    assert addresses.wait(1.0) == 0.0
    assert addresses.due(4.9) == ["b", "c"]
    assert addresses.due(5.0) == ["a", "b", "c"]


def test_when_all_of_them_did_the_first_to_be_back_is_waited_for() -> None:
    addresses = Addresses(URLS)
    for url, until in zip(URLS, (9.0, 6.0, 7.0), strict=True):
        addresses.rest(url, until)
    assert addresses.due(5.0) == []
    assert addresses.wait(5.0) == 1.0
    assert addresses.wait(6.5) == 0.0
    addresses.wake()
    assert addresses.due(5.0) == ["a", "b", "c"]


def test_one_that_serves_rests_no_more() -> None:
    addresses = Addresses(URLS)
    addresses.rest("a", 100.0)
    addresses.good("a")
    assert addresses.due(0.0)[0] == "a"
