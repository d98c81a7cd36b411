from __future__ import annotations

import math
import shutil
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from draftwire.edge_client.drafter import Drafter
from draftwire.protocol.errors import (
    BundleCorruptError,
    BundleNotFoundError,
    DrafterError,
    InvalidParameterError,
    NonFiniteLogitsError,
)
from draftwire.protocol.manifest import Manifest
from numpy.typing import NDArray

from .conftest import write_manifest

Reference = Callable[[Sequence[int]], NDArray[np.float32]]
TOLERANCE = {"rtol": 0, "atol": 2e-3}  # on logits of a spread of about 10


@pytest.fixture
def drafter(bundle_folder: Path) -> Drafter:
    return Drafter.load(bundle_folder, threads=1, verify=False)


@pytest.mark.parametrize("past", [0, 1, 7, 500])
@pytest.mark.parametrize("new", [1, 2, 9])
def test_past_and_new_tokens_equal_the_torch_model(
    drafter: Drafter, torch_logits: Reference, sample_tokens: list[int], past: int, new: int
) -> None:
    tokens = sample_tokens[: past + new]
    if past:
        drafter.feed(tokens[:past])
    rows = drafter.feed_rows(tokens[past:])
    assert rows.shape == (new, drafter.vocabulary_size)
    assert rows.dtype == np.float32
    np.testing.assert_allclose(rows, torch_logits(tokens)[past:, : drafter.vocabulary_size], **TOLERANCE)
    assert drafter.length == past + new


@pytest.mark.parametrize("kept", [20, 13, 1, 0], ids=["none", "some", "all but one", "all"])
@pytest.mark.parametrize("new", [1, 5])
def test_after_rollback_logits_equal_recomputation(
    drafter: Drafter, torch_logits: Reference, sample_tokens: list[int], kept: int, new: int
) -> None:
    drafter.feed(sample_tokens[:20])
    drafter.rollback(kept)
    assert drafter.length == kept
    other = sample_tokens[100 : 100 + new]
    rows = drafter.feed_rows(other)
    expected = torch_logits(sample_tokens[:kept] + other)[kept:, : drafter.vocabulary_size]
    np.testing.assert_allclose(rows, expected, **TOLERANCE)


def test_repeated_rollbacks_across_growth_stay_exact(
    drafter: Drafter, torch_logits: Reference, sample_tokens: list[int]
) -> None:
    random = np.random.default_rng(5)
    held: list[int] = []
    for _ in range(60):
        new = [int(token) for token in random.integers(2, 340, int(random.integers(1, 30)))]
        logits = drafter.feed(new)
        held += new
        assert drafter.tokens == tuple(held)
        kept = max(0, len(held) - int(random.integers(0, 12)))
        drafter.rollback(kept)
        del held[kept:]
    assert len(held) > 256, "the first buffer must have grown"
    logits = drafter.feed(sample_tokens[:1])
    expected = torch_logits([*held, sample_tokens[0]])[-1, : drafter.vocabulary_size]
    np.testing.assert_allclose(logits, expected, **TOLERANCE)


def test_feed_returns_an_array_that_later_feeds_leave_alone(drafter: Drafter) -> None:
    first = drafter.feed([5])
    before = first.copy()
    drafter.feed([6])
    np.testing.assert_array_equal(first, before)


def test_long_prompts_run_in_pieces_and_equal_one_by_one(drafter: Drafter, sample_tokens: list[int]) -> None:
    tokens = sample_tokens[:200]
    assert drafter._graph.max_rows < len(tokens)
    pieces = drafter.feed_rows(tokens)
    drafter.rollback(0)
    one_by_one = np.stack([drafter.feed([token]) for token in tokens])
    np.testing.assert_allclose(pieces, one_by_one, **TOLERANCE)


class TestSync:
    def test_leaves_the_last_token_to_feed(
        self, drafter: Drafter, torch_logits: Reference, sample_tokens: list[int]
    ) -> None:
        tokens = sample_tokens[:30]
        drafter.sync(tokens)
        assert drafter.tokens == tuple(tokens[:-1])
        expected = torch_logits(tokens)[-1, : drafter.vocabulary_size]
        np.testing.assert_allclose(drafter.feed(tokens[-1:]), expected, **TOLERANCE)

    @pytest.mark.parametrize(
        ("held", "wanted", "fed"),
        [
            ([], [1], 0),
            ([], [1, 2, 3], 2),
            ([1, 2, 3], [1, 2, 3], 0),
            ([1, 2, 3, 4], [1, 2], 0),
            ([1, 2, 3], [1, 9, 3, 4], 2),
            ([1, 2, 3], [9, 2, 3], 2),
            ([1, 2], [1, 2, 3, 4, 5], 2),
        ],
    )
    def test_feeds_only_what_differs(self, drafter: Drafter, held: list[int], wanted: list[int], fed: int) -> None:
        if held:
            drafter.feed(held)
        before = drafter.tokens_fed
        drafter.sync(wanted)
        assert drafter.tokens == tuple(wanted[:-1])
        assert drafter.tokens_fed - before == fed

    def test_refuses_an_empty_sequence(self, drafter: Drafter) -> None:
        with pytest.raises(InvalidParameterError, match="tokens: must hold at least one"):
            drafter.sync([])


class TestContextLimit:
    @pytest.fixture
    def small(self, bundle_folder: Path) -> Drafter:
        drafter = Drafter.load(bundle_folder, threads=1, verify=False)
        manifest = replace(drafter.manifest, context_length=12)
        kind = type(drafter._graph)
        return Drafter(kind(drafter._graph._session, manifest), manifest)

    def test_the_last_position_can_be_used_and_no_more(self, small: Drafter, torch_logits: Reference) -> None:
        tokens = list(range(2, 14))
        small.feed(tokens[:11])
        logits = small.feed(tokens[11:])
        np.testing.assert_allclose(logits, torch_logits(tokens)[-1, : small.vocabulary_size], **TOLERANCE)
        with pytest.raises(DrafterError, match="context holds 12 tokens and 13 are needed"):
            small.feed([5])
        assert small.length == 12
        small.rollback(11)
        np.testing.assert_array_equal(small.feed(tokens[11:]), logits)

    def test_sync_beyond_it_changes_nothing(self, small: Drafter) -> None:
        small.feed([3, 4, 5])
        with pytest.raises(DrafterError, match="context holds 12 tokens and 13 are needed"):
            small.sync(list(range(2, 15)))
        assert small.tokens == (3, 4, 5)


class TestBadInput:
    @pytest.mark.parametrize("bad", [-1, 384, 2**31, 2**40, 2**70, 1.5, True, None, "a"])
    def test_token_ids_that_are_none(self, drafter: Drafter, bad: object) -> None:
        drafter.feed([3])
        with pytest.raises(InvalidParameterError, match=r"^tokens: "):
            drafter.feed([bad])  # type: ignore[list-item]
        with pytest.raises(InvalidParameterError, match=r"^tokens: "):
            drafter.sync([bad])  # type: ignore[list-item]
        assert drafter.tokens == (3,)

    def test_padding_ids_of_the_model_are_no_tokens(self, drafter: Drafter) -> None:
        with pytest.raises(InvalidParameterError, match=f"id {drafter.vocabulary_size} is outside 0 to"):
            drafter.feed([drafter.vocabulary_size])

    @pytest.mark.parametrize("length", [-1, 4, 2**40, 1.0, None])
    def test_rollback_out_of_range(self, drafter: Drafter, length: int) -> None:
        drafter.feed([3, 4, 5])
        with pytest.raises(InvalidParameterError, match="length: must be from 0 to 3"):
            drafter.rollback(length)
        assert drafter.length == 3

    def test_use_from_two_threads_is_told(self, drafter: Drafter) -> None:
        inside, leave = threading.Event(), threading.Event()
        run = drafter._graph.run

        def slow(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
            inside.set()
            leave.wait(30)
            return run(tokens)

        drafter._graph.run = slow  # type: ignore[method-assign, assignment]
        thread = threading.Thread(target=drafter.feed, args=([3],))
        thread.start()
        assert inside.wait(30)
        with pytest.raises(DrafterError, match="another thread"):
            drafter.rollback(0)
        leave.set()
        thread.join()
        assert drafter.length == 1

    def test_a_failing_run_appends_nothing(self, drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
        drafter.feed([3, 4])
        real, calls = drafter._graph.run, iter(range(9))

        def fail_second(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
            if next(calls) == 1:
                raise DrafterError("broken")
            return real(tokens)

        monkeypatch.setattr(drafter._graph, "run", fail_second)
        with pytest.raises(DrafterError, match="broken"):
            drafter.feed([5] * (drafter._graph.max_rows + 1))
        assert drafter.tokens == (3, 4)


def test_memory_is_bounded_over_two_thousand_tokens(drafter: Drafter, sample_tokens: list[int]) -> None:
    # From 1,100 tokens on, one layer's keys alone are more than 256 KiB, and a shared buffer of 2,048 needs no growth:
    # if Python allocated a copy of them for a token, the peak would show it.
    layer_bytes = 1100 * 2 * 32 * 4
    drafter.feed(sample_tokens[:10])
    resident = resident_bytes()
    for token in sample_tokens[10:1100]:
        drafter.feed([token])
    tracemalloc.start()
    try:
        for token in sample_tokens[1100:2000]:
            drafter.feed([token])
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert drafter.length == 2000
    assert held < layer_bytes / 2
    assert peak < layer_bytes / 2
    assert resident_bytes() - resident < 64 << 20


def resident_bytes() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


class TestLoading:
    def test_the_cache_starts_empty_and_counters_at_zero(self, drafter: Drafter) -> None:
        assert (drafter.length, drafter.tokens_fed, drafter.cpu_seconds) == (0, 0, 0.0)
        drafter.feed([3, 4])
        assert drafter.tokens_fed == 2
        assert 0 < drafter.cpu_seconds < math.inf

    def test_a_moved_folder_loads(self, bundle_folder: Path, tmp_path: Path) -> None:
        expected = Drafter.load(bundle_folder, threads=1).feed([3, 4, 5])
        moved = tmp_path / "elsewhere" / "draft"
        shutil.copytree(bundle_folder, moved)
        np.testing.assert_array_equal(Drafter.load(moved, threads=1).feed([3, 4, 5]), expected)

    def test_a_flipped_byte_in_the_weights_is_told(self, bundle_copy: Path) -> None:
        data = bundle_copy / "model.onnx.data"
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 1
        data.write_bytes(content)
        with pytest.raises(BundleCorruptError, match=r"model\.onnx\.data differs from its manifest"):
            Drafter.load(bundle_copy)

    @pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "manifest.json"])
    @pytest.mark.parametrize("verify", [True, False])
    def test_a_missing_file_is_told(self, bundle_copy: Path, name: str, verify: bool) -> None:
        (bundle_copy / name).unlink()
        with pytest.raises(BundleNotFoundError, match=name.replace(".data", "")):
            Drafter.load(bundle_copy, verify=verify)

    def test_weights_without_a_hash_are_refused(self, bundle_copy: Path) -> None:
        manifest = Manifest.load(bundle_copy)
        replace(manifest, files={k: v for k, v in manifest.files.items() if k != "model.onnx.data"}).save(bundle_copy)
        with pytest.raises(BundleCorruptError, match=r"no hash of model\.onnx\.data"):
            Drafter.load(bundle_copy)

    def test_non_finite_weights_are_refused(self, bundle_copy: Path) -> None:
        path = bundle_copy / "model.onnx"
        model = onnx.load(path)
        weight = next(item for item in model.graph.initializer if "embed_tokens" in item.name)
        weight.CopyFrom(onnx.numpy_helper.from_array(np.full((384, 64), np.nan, np.float32), weight.name))
        (bundle_copy / "model.onnx.data").unlink()
        onnx.save(model, path)
        write_manifest(bundle_copy, layout="shared_buffer", inputs=["input_ids", "attention_mask"])
        with pytest.raises(NonFiniteLogitsError, match="not finite"):
            Drafter.load(bundle_copy)


def test_non_finite_logits_append_nothing(drafter: Drafter, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter.feed([3])
    real = drafter._graph.run
    poison = {"value": np.nan}

    def poisoned(tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        logits = real(tokens).copy()
        logits[-1, 4:] = poison["value"]
        if not math.isnan(poison["value"]):
            logits[-1] = poison["value"]
        return logits

    monkeypatch.setattr(drafter._graph, "run", poisoned)
    for value in (np.nan, -np.inf, np.inf):
        poison["value"] = value
        with pytest.raises(NonFiniteLogitsError):
            drafter.feed([4, 5])
        assert drafter.tokens == (3,)
