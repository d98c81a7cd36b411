"""Runs ONNX Runtime GenAI's model builder in this process; started by :mod:`draftwire.export.fused_builder`.

Under transformers 5 a model whose layer types have rotary bases of their own (Gemma 3) keeps them in one nested
table, which the builder's Gemma 3 code does not look into: it still asks for the two flat names of transformers 4.
They are added to the configuration that the builder sees.

The builder of that line (0.18) gives a window only to the layers that ``layer_types`` calls sliding, and a model whose
layers all slide (Mistral) has no such list in transformers: it is added too.

The exporter checks the graph against the torch model in any case.
"""

from __future__ import annotations

import runpy
from typing import Any

__all__ = ["flatten_rope", "name_sliding_layers"]

_BUILDER = "onnxruntime_genai.models.builder"


def flatten_rope(config: Any) -> Any:
    """Add ``rope_theta`` and ``rope_local_base_freq`` to a configuration that has them by layer type only."""
    table = getattr(config, "rope_parameters", None)
    if not isinstance(table, dict):
        return config
    full, local = table.get("full_attention"), table.get("sliding_attention")
    if not isinstance(full, dict) or not isinstance(local, dict) or "rope_theta" not in full:
        return config
    config.rope_theta = full["rope_theta"]
    config.rope_local_base_freq = local.get("rope_theta")
    config.rope_parameters = {**table, **full}
    return config


def name_sliding_layers(config: Any) -> Any:
    """Add ``layer_types`` to a configuration that has a sliding window and does not say which layers it is for."""
    window = getattr(config, "sliding_window", None)
    if isinstance(window, int) and window > 0 and getattr(config, "layer_types", None) is None:
        config.layer_types = ["sliding_attention"] * config.num_hidden_layers
    return config


def _main() -> None:
    import transformers

    auto: Any = transformers.AutoConfig
    original = auto.from_pretrained
    auto.from_pretrained = lambda *arguments, **options: name_sliding_layers(
        flatten_rope(original(*arguments, **options))
    )
    runpy.run_module(_BUILDER, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
