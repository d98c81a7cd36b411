from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.edge_client.bundle import DraftBundle
from draftwire.edge_client.drafter import Drafter
from draftwire.edge_client.proposer import Proposer
from draftwire.edge_client.trace import Trace, TraceRecord, record
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.noise import gumbel
from draftwire.protocol.sampling import SamplingParams

RECORD = TraceRecord(task="chat", temperature=0.7, seed=7, ranks=(0, 2, 0), confidences=(1, 40, 255))
TRACE = Trace(target="big", draft="small", records=[RECORD])
GREEDY, COUPLED = SamplingParams(temperature=0.0), SamplingParams(temperature=0.8)


@pytest.fixture(scope="module")
def drafter(fused_bundle: Path) -> Drafter:
    return DraftBundle.load(fused_bundle).load_drafter(threads=1)


def drafted_text(
    drafter: Drafter, prompt: list[int], count: int, sampling: SamplingParams
) -> tuple[list[int], list[int]]:
    """What the device itself would go on with, and the confidence bytes."""
    proposer = Proposer(sampling, seed=5, prompt_length=len(prompt))
    tokens, confidences = list(prompt), []
    for _ in range(count):
        drafter.sync(tokens)
        proposal, confidence = proposer.propose(drafter.feed(tokens[-1:]), tokens)
        tokens.append(proposal.token)
        confidences.append(confidence)
    return tokens[len(prompt) :], confidences


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_the_devices_own_text_is_right_everywhere(
    drafter: Drafter, sample_tokens: list[int], sampling: SamplingParams
) -> None:
    prompt = sample_tokens[:9]
    text, confidences = drafted_text(drafter, prompt, 12, sampling)
    found = record(drafter, prompt, text, sampling=sampling, seed=5, task="list")
    assert found.right == (True,) * 12
    assert found.confidences == tuple(confidences)
    assert (found.task, found.temperature, found.seed) == ("list", sampling.temperature, 5)


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
def test_another_token_has_its_rank_and_what_follows_is_judged_behind_it(
    drafter: Drafter, sample_tokens: list[int], sampling: SamplingParams
) -> None:
    prompt = sample_tokens[:9]
    drafter.sync(prompt)
    scores = drafter.feed(prompt[-1:]).astype(np.float64)
    if not sampling.greedy:
        scores = scores / sampling.temperature + gumbel(5, len(prompt), np.arange(len(scores)))
    third = int(np.argsort(-scores)[2])
    follow, _ = drafted_text(drafter, [*prompt, third], 4, sampling)
    found = record(drafter, prompt, [third, *follow], sampling=sampling, seed=5)
    assert found.ranks == (2, 0, 0, 0, 0)


def test_nothing_is_recorded_where_no_device_would_draft(drafter: Drafter, sample_tokens: list[int]) -> None:
    prompt = sample_tokens[: drafter.context_length - 3]
    assert len(record(drafter, prompt, [5] * 10, sampling=GREEDY, seed=0).ranks) == 3


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    TRACE.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json") == TRACE
    content = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert content["records"][0]["ranks"] == [0, 2, 0]
    assert content.keys() == {"about", "target", "draft", "records"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"records": None}, "records is no list"),
        ({"target": 3}, "target is 3, not text"),
        ({"records": [3]}, "it has no temperature"),
        ({"records": [{"seed": "x"}]}, "a record's seed is 'x'"),
        ({"records": [{"temperature": "warm"}]}, "a record's temperature is 'warm'"),
        ({"records": [{"temperature": True}]}, "a record's temperature is True"),
        ({"records": [{"temperature": float("nan")}]}, "a record's temperature is nan"),
        ({"records": [{"temperature": float("inf")}]}, "a record's temperature is inf"),
        ({"records": [{"temperature": -0.1}]}, "a record's temperature is -0.1"),
        ({"records": [{"temperature": 10**400}]}, "a record's temperature is 1000"),
        ({"records": [{"ranks": [], "confidences": []}]}, "a record is of no position"),
        ({"target": [[[[[[[[]]]]]]]]}, "target is [[[[[[[...]]]]]]], not text"),
        ({"records": [{"ranks": [0, -1, 0]}]}, "ranks holds -1"),
        ({"records": [{"ranks": [0, True, 0]}]}, "ranks holds True"),
        ({"records": [{"confidences": [0, 1, 256]}]}, "confidences holds 256"),
        ({"records": [{"ranks": [0]}]}, "a record has 1 ranks and 3 confidences"),
        ({"records": [{"task": None}]}, "task is None, not text"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    file = tmp_path / "trace.json"
    TRACE.save(file)
    content = json.loads(file.read_text("utf-8"))
    good = content["records"][0]
    content.update(change)
    if isinstance(content["records"], list):
        content["records"] = [{**good, **item} if isinstance(item, dict) else item for item in content["records"]]
    file.write_text(json.dumps(content), "utf-8")
    with pytest.raises(InvalidParameterError, match="is no trace: ") as caught:
        Trace.load(file)
    assert problem in str(caught.value)
    assert str(caught.value).endswith("; record it again")
    assert len(str(caught.value)) < len(str(file)) + 150


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_a_file_that_is_no_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(InvalidParameterError, match="is no JSON text"):
        Trace.load(tmp_path / "trace.json")


@pytest.mark.parametrize("opening", [b"[", b'{"records":'])
def test_a_file_that_is_nested_too_deep(tmp_path: Path, opening: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(opening * 100_000)
    with pytest.raises(InvalidParameterError, match=r"is no trace: it is nested too deep; record it again$"):
        Trace.load(tmp_path / "trace.json")


def test_a_file_that_is_not_there_or_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameterError, match="cannot be read"):
        Trace.load(tmp_path / "absent.json")
    with pytest.raises(InvalidParameterError, match="cannot be written"):
        TRACE.save(tmp_path / "absent" / "trace.json")
