"""What is added to a configuration before the fused builder sees it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from draftwire.export.fused_worker import flatten_rope, name_sliding_layers


def test_a_window_without_layer_types_is_for_every_layer() -> None:
    config = name_sliding_layers(SimpleNamespace(sliding_window=64, num_hidden_layers=3))

    assert config.layer_types == ["sliding_attention"] * 3


@pytest.mark.parametrize(
    "fields",
    [
        {"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]},
        {"sliding_window": None},
        {"sliding_window": 0},
        {},
    ],
)
def test_other_configurations_stay_as_they_are(fields: dict[str, object]) -> None:
    config = SimpleNamespace(num_hidden_layers=2, **fields)

    assert vars(name_sliding_layers(config)) == {"num_hidden_layers": 2, **fields}


def test_rotary_bases_by_layer_type_get_their_flat_names() -> None:
    table = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    config = flatten_rope(SimpleNamespace(rope_parameters=table))

    assert (config.rope_theta, config.rope_local_base_freq) == (1e6, 1e4)
