from __future__ import annotations

import pytest
from draftwire.edge_client.bench.adversities import ADVERSITIES, choose_adversities
from draftwire.protocol.errors import InvalidParameterError

NAMES = ["useless", "slow", "far", "jitter", "narrow", "busy", "long", "near"]


def test_the_list_is_fixed() -> None:
    assert [each.name for each in ADVERSITIES] == NAMES
    by_name = {each.name: each for each in ADVERSITIES}
    assert by_name["jitter"].net.relayed.jitter_range == (0.02, 0.4)
    assert by_name["narrow"].net.relayed.bandwidth("up") == by_name["narrow"].net.relayed.bandwidth("down") == 1e5
    assert [each.name for each in ADVERSITIES if not each.net.emulated] == ["near"]


@pytest.mark.parametrize(
    ("asked", "expected"), [(["all"], NAMES), (["near", "useless", "near"], ["useless", "near"]), (["far"], ["far"])]
)
def test_some_can_be_chosen(asked: list[str], expected: list[str]) -> None:
    assert [each.name for each in choose_adversities(asked)] == expected


@pytest.mark.parametrize("name", ["", "Far", "worse"])
def test_an_unknown_one_is_named(name: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"--adverse: must be all, or of useless, .*not '{name}'"):
        choose_adversities(["far", name])
