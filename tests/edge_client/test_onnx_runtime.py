from __future__ import annotations

import ast
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from draftwire.edge_client import onnx_runtime
from draftwire.edge_client.onnx_runtime import (
    ConcatenatedGraph,
    SharedBufferGraph,
    available_providers,
    default_threads,
    load_graph,
)
from draftwire.protocol.errors import BundleCorruptError, BundleNotFoundError, DrafterError, InvalidParameterError
from draftwire.protocol.manifest import Manifest


def test_half_of_the_usable_cores_but_at_least_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, expected in ((1, 1), (2, 1), (3, 1), (8, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, n=cores: set(range(n)), raising=False)
        assert default_threads() == expected
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert default_threads() == 1


def test_session_has_device_manners(fused_bundle: Path) -> None:
    graph = load_graph(fused_bundle, Manifest.load(fused_bundle))
    options = graph._session.get_session_options()
    assert options.intra_op_num_threads == default_threads() == graph.threads
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"
    assert load_graph(fused_bundle, Manifest.load(fused_bundle), threads=2).threads == 2


@pytest.mark.parametrize("threads", [0, -1, 257, 10**9, 1.5, True, "2"])
def test_threads_out_of_range(fused_bundle: Path, threads: int) -> None:
    with pytest.raises(InvalidParameterError, match="threads: must be a whole number from 1 to 256"):
        load_graph(fused_bundle, Manifest.load(fused_bundle), threads=threads)


def test_unknown_provider_names_those_available(fused_bundle: Path) -> None:
    assert "CPUExecutionProvider" in available_providers()
    with pytest.raises(InvalidParameterError, match=r"providers: 'NoSuchProvider'.*available: .*CPUExecutionProvider"):
        load_graph(fused_bundle, Manifest.load(fused_bundle), providers=["NoSuchProvider", "CPUExecutionProvider"])
    with pytest.raises(InvalidParameterError, match="providers: must name at least one"):
        load_graph(fused_bundle, Manifest.load(fused_bundle), providers=[])


def test_layout_decides_the_class(bundle_folder: Path) -> None:
    manifest = Manifest.load(bundle_folder)
    graph = load_graph(bundle_folder, manifest, threads=1)
    assert isinstance(graph, SharedBufferGraph if manifest.kv.layout == "shared_buffer" else ConcatenatedGraph)
    assert graph.providers == ("CPUExecutionProvider",)


def test_buffers_grow_by_doubling_up_to_the_context(fused_bundle: Path) -> None:
    manifest = replace(Manifest.load(fused_bundle), context_length=700)
    graph = load_graph(fused_bundle, manifest, threads=1)
    assert isinstance(graph, SharedBufferGraph)
    seen = []
    for _ in range(700):
        graph.run([5])
        if not seen or seen[-1] != graph.capacity:
            seen.append(graph.capacity)
    assert seen == [256, 512, 700]
    with pytest.raises(DrafterError, match="holds 700 tokens and 701 are needed"):
        graph.run([5])


def test_growth_that_fails_leaves_a_usable_cache(fused_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = Manifest.load(fused_bundle)
    tokens = np.random.default_rng(1).integers(2, 340, 280)
    graph, other = (load_graph(fused_bundle, manifest, threads=1) for _ in range(2))
    for token in tokens[:256]:
        graph.run([token])
        other.run([token])
    zeros, calls = np.zeros, iter(range(99))

    def fail_third(*args: object, **kwargs: object) -> object:
        if next(calls) == 2:
            raise MemoryError
        return zeros(*args, **kwargs)  # type: ignore[call-overload]

    with monkeypatch.context() as patch:
        patch.setattr(onnx_runtime.np, "zeros", fail_third)
        with pytest.raises(DrafterError, match="out of memory for a draft context of 257 tokens"):
            graph.run([int(tokens[256])])
    assert graph.length == 256
    for token in tokens[256:]:
        np.testing.assert_array_equal(graph.run([token]), other.run([token]))


def test_logits_buffer_stays_bounded_for_wide_vocabularies(fused_bundle: Path) -> None:
    manifest = Manifest.load(fused_bundle)
    session = load_graph(fused_bundle, manifest, threads=1)._session
    for size, rows in ((384, 64), (49152, 64), (151936, 27), (262144, 16)):
        wide = replace(manifest, vocabulary=replace(manifest.vocabulary, logits_size=size))
        assert SharedBufferGraph(session, wide).max_rows == rows


class TestBrokenGraphs:
    def test_no_onnx_at_all(self, bundle_copy: Path) -> None:
        (bundle_copy / "model.onnx").write_bytes(b"not a model" * 99)
        with pytest.raises(BundleCorruptError, match="is no ONNX model"):
            load_graph(bundle_copy, Manifest.load(bundle_copy))

    def test_truncated_graph(self, bundle_copy: Path) -> None:
        path = bundle_copy / "model.onnx"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises((BundleCorruptError, DrafterError)) as caught:
            load_graph(bundle_copy, Manifest.load(bundle_copy))
        assert "\n" not in str(caught.value)

    def test_truncated_weights(self, bundle_copy: Path) -> None:
        path = bundle_copy / "model.onnx.data"
        path.write_bytes(path.read_bytes()[:1000])
        with pytest.raises((BundleCorruptError, BundleNotFoundError, DrafterError)) as caught:
            load_graph(bundle_copy, Manifest.load(bundle_copy))
        assert "\n" not in str(caught.value)

    def test_a_graph_outside_the_folder_is_refused(self, bundle_copy: Path) -> None:
        manifest = Manifest.load(bundle_copy)
        manifest = replace(manifest, graph=replace(manifest.graph, file="../bundle/model.onnx"))
        with pytest.raises(BundleCorruptError, match="must lie in the folder itself"):
            load_graph(bundle_copy, manifest)

    @pytest.mark.parametrize(
        ("part", "change"),
        [
            ("kv", {"layers": 3}),
            ("kv", {"past_key": "past.{layer}.k"}),
            ("kv", {"present_value": "now.{layer}.v"}),
            ("graph", {"logits": "scores"}),
            ("graph", {"inputs": ["input_ids"]}),
            ("graph", {"inputs": ["input_ids", "attention_mask", "position_ids"]}),
        ],
    )
    def test_manifest_of_another_graph(self, fused_bundle: Path, part: str, change: dict[str, object]) -> None:
        manifest = Manifest.load(fused_bundle)
        manifest = replace(manifest, **{part: replace(getattr(manifest, part), **change)})
        with pytest.raises(BundleCorruptError, match="not the graph its manifest describes"):
            load_graph(fused_bundle, manifest)

    def test_wrong_kv_shape_is_one_clear_line(self, bundle_folder: Path) -> None:
        manifest = Manifest.load(bundle_folder)
        graph = load_graph(bundle_folder, replace(manifest, kv=replace(manifest.kv, heads=3)), threads=1)
        with pytest.raises(DrafterError, match="the draft model failed: ") as caught:
            graph.run([3])
        assert "\n" not in str(caught.value)
        assert graph.length == 0


def test_only_this_module_imports_onnxruntime() -> None:
    folder = Path(onnx_runtime.__file__).parent
    importers = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            importers |= {path.name for name in names if name.split(".")[0] == "onnxruntime"}
    assert importers == {"onnx_runtime.py"}
