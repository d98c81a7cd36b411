"""A draft that cannot be used: the text comes all the same, cloud-only, and the reason is told in one line."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client import AsyncEdgeClient, Degraded
from draftwire.protocol.errors import (
    BundleCorruptError,
    BundleNotFoundError,
    DraftwireError,
    FingerprintMismatchError,
)

from ..grace import wait_for
from .one_line import check_one_line
from .running_verifier import RunningVerifier, honest_stream, running_verifier
from .table_bundle import right_table, seal, write_bundle
from .table_targets import endless_table, reference_tokens

PROMPT = [1, 7, 3]


async def goes_on_without(draft: Path, verifier: RunningVerifier, *, reason: str) -> None:
    """Text comes, exact and cloud-only, with the reason in the status and in an event."""
    async with honest_stream(verifier), AsyncEdgeClient(verifier.url, draft=draft) as client:
        status = await wait_for(client.wait_for_draft())
        assert status.mode == "cloud-only"
        assert status.reason is not None
        assert reason in status.reason
        assert "\n" not in status.reason
        async with client.stream("abc", max_tokens=30, temperature=0.8, seed=4) as stream:
            events = [event async for event in stream]
            result = await stream.get_final_result()
        degraded = [event.reason for event in events if isinstance(event, Degraded)]
        assert degraded == [status.reason]
        assert result.token_ids == reference_tokens(verifier.target, [1, 2, 3], 30, temperature=0.8, seed=4)
        assert result.text == "".join(chr(ord("a") + token - 1) for token in result.token_ids)
        assert result.stats.sent_tokens == result.stats.draft_steps == 0


async def is_required(draft: Path, verifier: RunningVerifier, kind: type[DraftwireError]) -> None:
    async with honest_stream(verifier), AsyncEdgeClient(verifier.url, draft=draft, require_draft=True) as client:
        for _ in range(2):
            with pytest.raises(kind) as caught:
                await wait_for(client.generate(PROMPT, max_tokens=5))
            check_one_line(caught.value)


@pytest.fixture
def copy(right_draft: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(right_draft, tmp_path / "copy"))


async def test_no_bundle(verifier: RunningVerifier, tmp_path: Path) -> None:
    await goes_on_without(tmp_path / "nowhere", verifier, reason="no draft bundle at")
    await is_required(tmp_path / "nowhere", verifier, BundleNotFoundError)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
async def test_a_flipped_bit(name: str, verifier: RunningVerifier, copy: Path) -> None:
    data = bytearray((copy / name).read_bytes())
    data[len(data) // 2] ^= 1
    (copy / name).write_bytes(data)
    await goes_on_without(copy, verifier, reason=name)
    await is_required(copy, verifier, BundleCorruptError)


async def test_a_missing_file(verifier: RunningVerifier, copy: Path) -> None:
    (copy / "model.onnx").unlink()
    await goes_on_without(copy, verifier, reason="model.onnx")
    await is_required(copy, verifier, BundleNotFoundError)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": "draftwire-bundle", "format_version": 99}', "\x00"])
async def test_a_manifest_that_is_none(text: str, verifier: RunningVerifier, copy: Path) -> None:
    (copy / "manifest.json").write_text(text)
    await goes_on_without(copy, verifier, reason="manifest.json")
    await is_required(copy, verifier, BundleCorruptError)


async def test_a_graph_with_another_shape_of_cache(verifier: RunningVerifier, copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["kv"]["layers"] = 2
    (copy / "manifest.json").write_text(json.dumps(manifest))
    await goes_on_without(copy, verifier, reason="not the graph its manifest describes")


async def test_a_file_that_is_no_graph_though_its_hash_is_right(verifier: RunningVerifier, copy: Path) -> None:
    (copy / "model.onnx").write_bytes(b"not a graph")
    seal(copy)
    await goes_on_without(copy, verifier, reason="model.onnx")


async def test_another_vocabulary(verifier: RunningVerifier, tmp_path: Path) -> None:
    stranger = TableTarget(vocabulary_size=16, seed=5)
    draft = write_bundle(tmp_path / "stranger", stranger, right_table(stranger), name="stranger")
    await goes_on_without(draft, verifier, reason="does not share the vocabulary of the target table-24-5")
    await is_required(draft, verifier, FingerprintMismatchError)


async def test_the_same_ids_for_other_texts(verifier: RunningVerifier, tmp_path: Path) -> None:
    """As large as the target's vocabulary, but two tokens have changed places: garbage, if it were let through."""
    twisted = endless_table()
    tokenizer = json.loads(twisted.tokenizer_json)
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    twisted.tokenizer_json = json.dumps(tokenizer)
    draft = write_bundle(tmp_path / "twisted", twisted, right_table(twisted), name="twisted")
    await goes_on_without(draft, verifier, reason="does not share the vocabulary")


async def test_a_draft_that_yields_nan_in_mid_stream(verifier: RunningVerifier, tmp_path: Path) -> None:
    table = right_table(verifier.target)
    expected = reference_tokens(verifier.target, [1, 2, 3], 16)
    table[(expected[9] + 1) * 25 + expected[10] + 1] = math.nan
    draft = write_bundle(tmp_path / "nan", verifier.target, table)
    async with AsyncEdgeClient(verifier.url, draft=draft) as client:
        await client.wait_for_draft()
        async with client.stream([1, 2, 3], max_tokens=16, policy="cost") as stream:
            events = [event async for event in stream]
            result = await stream.get_final_result()
    assert result.token_ids == expected
    assert ["not finite" in event.reason for event in events if isinstance(event, Degraded)] == [True]


async def test_a_draft_whose_context_is_shorter_than_the_targets(tmp_path: Path, drafts: dict[str, Path]) -> None:
    draft = Path(shutil.copytree(drafts["right"], tmp_path / "short"))
    manifest = json.loads((draft / "manifest.json").read_text())
    manifest["context_length"] = 20
    (draft / "manifest.json").write_text(json.dumps(manifest))
    async with running_verifier(endless_table()) as verifier, AsyncEdgeClient(verifier.url, draft=draft) as client:
        await client.wait_for_draft()
        for prompt, count in ((PROMPT, 22), (PROMPT * 10, 4)):
            async with client.stream(prompt, max_tokens=count, policy="cost") as stream:
                events = [event async for event in stream]
                result = await stream.get_final_result()
            assert result.token_ids == reference_tokens(verifier.target, prompt, count)
            assert ["context" in event.reason for event in events if isinstance(event, Degraded)] == [True]
        assert client.status.mode == "drafting"  # the next prompt may fit


async def test_a_tokenizer_of_another_target(verifier: RunningVerifier, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(TableTarget(vocabulary_size=16).tokenizer_json)
    async with AsyncEdgeClient(verifier.url, tokenizer=tmp_path) as client:
        with pytest.raises(FingerprintMismatchError, match="table-24-5") as caught:
            await wait_for(client.generate("abc", max_tokens=4))
        check_one_line(caught.value)
