"""Both cache layouts: every past and block, rollback, and left padding where positions are given."""

from __future__ import annotations

import numpy as np
import pytest
from draftwire.export.exporter import ExportOptions, export_draft
from draftwire.export.graph_runner import GraphRunner
from draftwire.export.optimum_builder import optimum_available
from draftwire.export.parity import EXACT, check_cache
from draftwire.export.vocabulary import vocabulary_spec
from draftwire.protocol.errors import ParityError
from draftwire.protocol.manifest import Manifest

from .conftest import ModelMaker, tiny_tokenizer

LAYOUTS = [
    "fused",
    pytest.param(
        "optimum",
        marks=pytest.mark.skipif(
            not optimum_available(), reason="optimum-onnx needs transformers 4.57, this environment has another line"
        ),
    ),
]


@pytest.fixture(scope="module", params=LAYOUTS)
def runner(
    request: pytest.FixtureRequest, make_model: ModelMaker, tmp_path_factory: pytest.TempPathFactory
) -> GraphRunner:
    out = tmp_path_factory.mktemp("bundles") / request.param
    model = make_model("llama", name="long", max_position_embeddings=640)
    export_draft(str(model), out, ExportOptions(quantize="none", builder=request.param, threads=1))
    manifest = Manifest.load(out)
    return GraphRunner(out / manifest.graph.file, graph=manifest.graph, kv=manifest.kv, capacity=640)


def test_every_past_and_block_equals_recomputation(runner: GraphRunner) -> None:
    check_cache(runner, list(range(3, 200)), capacity=640, tolerance=EXACT)


def test_a_wrong_cache_is_noticed(runner: GraphRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = GraphRunner.feed

    def forgetful(self: GraphRunner, tokens: list[int]) -> np.ndarray:  # type: ignore[type-arg]
        if len(tokens) == 9 and self.length == 7:
            self.rollback(6)
        return feed(self, tokens)

    monkeypatch.setattr(GraphRunner, "feed", forgetful)
    with pytest.raises(ParityError, match="9 tokens after 7 cached"):
        check_cache(runner, list(range(3, 200)), capacity=640, tolerance=EXACT)


def test_rollback_forgets(runner: GraphRunner) -> None:
    runner.reset()
    runner.feed([5, 6, 7, 8])
    wanted = runner.feed([9])
    runner.rollback(4)
    runner.feed([30, 31, 32])
    runner.rollback(4)

    np.testing.assert_allclose(runner.feed([9]), wanted, atol=1e-4)
    assert runner.length == 5


def test_only_explicit_positions_take_padding(runner: GraphRunner) -> None:
    assert runner.takes_padding == ("position_ids" in runner._graph.inputs)


def test_vocabulary_counts_meaningful_ids_and_drops_unknown_ends() -> None:
    tokenizer = tiny_tokenizer()
    specification = vocabulary_spec(tokenizer, logits_size=320, eos_ids=[2, 3, 10_000])

    assert specification.size == len(tokenizer) < 320
    assert specification.eos_ids == [2, 3]
    assert (specification.bos_id, specification.pad_id) == (1, 0)
    assert vocabulary_spec(tokenizer, logits_size=100, eos_ids=[]).size == 100
