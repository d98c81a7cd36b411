from __future__ import annotations

import pytest
from draftwire.edge_client.bench.conditions import Condition, Net, parse_numbers
from draftwire.protocol.errors import InvalidParameterError


def test_numbers_come_in_order_and_once() -> None:
    assert parse_numbers("20,5,20,0.5", field="--rtt") == [20, 5, 0.5]


@pytest.mark.parametrize("text", ["", "5,", "x", "nan", "inf", "-1"])
def test_what_is_no_number_is_told(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="--rtt: must be numbers"):
        parse_numbers(text, field="--rtt")


def test_half_the_round_trip_each_way() -> None:
    net = Net(rtt_ms=50, jitter=(0.0, 0.002), bandwidth_up=1e6)
    assert net.relayed.delay == 0.025
    assert net.relayed.jitter_range == (0.0, 0.002)
    assert (net.relayed.bandwidth_up, net.relayed.bandwidth_down) == (1e6, None)


@pytest.mark.parametrize(
    ("net", "emulated"),
    [
        (Net(rtt_ms=0), False),
        (Net(rtt_ms=1), True),
        (Net(rtt_ms=0, jitter=(0, 0.001)), True),
        (Net(rtt_ms=0, bandwidth_down=1e6), True),
    ],
)
def test_nothing_is_emulated_where_nothing_is_asked_for(net: Net, emulated: bool) -> None:
    assert net.emulated is emulated


def test_a_round_trip_out_of_range() -> None:
    with pytest.raises(InvalidParameterError, match="--rtt"):
        Net(rtt_ms=10_001)


def test_a_condition_in_words() -> None:
    assert str(Condition(net=Net(rtt_ms=2.5), temperature=0.7)) == "RTT 2.5 ms, temperature 0.7"
