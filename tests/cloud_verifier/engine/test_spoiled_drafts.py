"""A draft token that the target cannot compute spoils its block, but neither the answer nor its distribution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.observer import Observer
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.stream import VerifierStream, Work
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.cloud_verifier.targets.target import Block
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.noise import Domain, uniform
from draftwire.protocol.sampling import SamplingParams, TokenHistory, probabilities, process_logits
from draftwire.protocol.sparse_q import SparseQ
from numpy.typing import NDArray

from ...integration.chi_squared import fit
from ..conftest import MakeModel
from .engine_rig import GREEDY, LIMITS, MODES, PROMPT, Device, V, alone, finish, make

BAD = 24


class Spoiling(TableTarget):
    """Keeps what each slot holds, rejected tokens included: where ``bad`` is among it, all rows are NaN, as in a model
    whose masked keys enter the products.
    """

    bad = BAD

    def __init__(self, *, vocabulary_size: int = V) -> None:
        super().__init__(vocabulary_size=vocabulary_size, seed=3)
        self._left: dict[int, list[int]] = {}

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        rows = super().step(blocks)
        for block, row in zip(blocks, rows, strict=True):
            left = self._left.setdefault(block.stream, [])
            end = block.start + len(block.tokens)
            left[block.start : end] = block.tokens
            if self.bad in left:
                row[:] = np.nan
        return rows

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:
        super().rollback(stream, length, wipe=wipe)
        if wipe:
            del self._left[stream][length:]


class Recomputed(Observer):
    """Counts blocks that were computed again, and errors."""

    def __init__(self) -> None:
        self.blocks = 0
        self.failures: list[str] = []

    def recomputed(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        del stream
        self.blocks += 1

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        del stream
        if outcome not in ("length", "stop"):
            self.failures.append(outcome)


def drafting(engine: Engine, device: Device, expected: Sequence[int], *, right: int, stream: int = 1) -> None:
    """At each commit, draft ``right`` tokens that are right, then the bad one, then another."""
    path = 0

    def draft() -> None:
        nonlocal path
        if stream not in device.ended:
            done = len(device.answer(stream))
            path += 1
            start = len(device.sequences[stream])
            device.draft(start, [*expected[done : done + right], BAD, 5], stream=stream, path=path)

    draft()
    finish(engine, draft)


@MODES
@pytest.mark.parametrize("right", [0, 1, 3])
def test_the_answer_is_the_targets_own(params: SamplingParams, right: int) -> None:
    expected, watch = alone(params), Recomputed()
    assert BAD not in expected
    engine, device = make(Spoiling(), observer=watch)
    device.open(params=params)
    drafting(engine, device, expected, right=right)
    assert device.answer() == expected
    assert (watch.blocks > 0, watch.failures) == (True, [])


def test_others_in_the_batch_keep_their_drafts() -> None:
    expected, watch = alone(), Recomputed()
    engine, device = make(Spoiling(), observer=watch)
    device.open(1)
    device.open(2)
    device.draft(4, expected[:8], stream=2)
    drafting(engine, device, expected, right=2)
    assert device.answer(1) == device.answer(2) == expected
    assert device.end(2).accepted_tokens == 8
    assert device.end(2).target_passes == 12
    assert watch.blocks <= device.end(1).target_passes / 2  # one more pass each, however many drafts were bad


def test_in_shadow_the_answer_is_plain() -> None:
    expected = alone()
    engine, device = make(Spoiling(), speculation=lambda *_: Speculation.SHADOW)
    device.open()
    drafting(engine, device, expected, right=1)
    assert device.answer() == expected
    assert device.end().accepted_tokens > 0


def test_what_the_target_says_itself_still_ends_the_stream() -> None:
    watch = Recomputed()
    engine, device = make(Spoiling(), observer=watch)
    device.open(prompt=(*PROMPT, BAD))
    finish(engine)
    assert device.error().code is ErrorCode.NON_FINITE_LOGITS
    assert (device.answer(), watch.blocks, watch.failures) == ([], 1, ["non_finite_logits"])


# --- by rejection ------------------------------------------------------------------------------------------------

SMALL, SPOILT = 6, 1
SPREAD = SparseQ((SPOILT, 2, 4, 5), (255, 60, 40, 30))
BY_REJECTION = SamplingParams(temperature=1.0, mode="rejection")
START = (2, 3)


def first_tokens(count: int) -> Counter[int]:
    """What is committed first, over so many seeds, where the spoilt token is drafted most often."""
    found = Counter[int]()
    target = Spoiling(vocabulary_size=SMALL)
    target.bad = SPOILT
    for seed in range(count):
        target._left.clear()
        engine, device = make(target)
        device.open(prompt=START, params=BY_REJECTION, max_tokens=3, seed=seed)
        drafted = [SPREAD.sample(uniform(seed, len(START) + offset, Domain.DRAFT)) for offset in range(2)]
        device.draft(len(START), drafted, sparse_q=(SPREAD, SPREAD))
        finish(engine)
        found[device.answer()[0]] += 1
    return found


def wanted() -> dict[int, float]:
    scores = Spoiling(vocabulary_size=SMALL).logits_after(START)
    p = probabilities(process_logits(scores, BY_REJECTION, TokenHistory()))
    assert 0.05 < p[SPOILT] < 0.9
    return dict(enumerate(p.tolist()))


def test_by_rejection_the_distribution_is_the_targets() -> None:
    assert fit(first_tokens(5000), wanted()) > 1e-4


def test_letting_a_spoilt_proposal_go_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Work.without_drafts
    monkeypatch.setattr(Work, "without_drafts", lambda work: replace(honest(work), proposals=[]))
    assert fit(first_tokens(5000), wanted()) < 1e-8


# --- a model -----------------------------------------------------------------------------------------------------

SPOILT_ROW = 50


@pytest.fixture
def spoilt_model(make_model: MakeModel) -> TransformersTarget:
    """A model with an embedding that is NaN, as a broken checkpoint has; none of its own text is made of it."""
    target = TransformersTarget.load(make_model("llama", tie_word_embeddings=False), dtype="float32", threads=1)
    with torch.no_grad():
        target._model.get_input_embeddings().weight[SPOILT_ROW] = torch.nan
    return target


def test_a_model_with_a_broken_row_answers_as_it_does_alone(spoilt_model: TransformersTarget) -> None:
    answers = []
    for drafts in (False, True):
        watch = Recomputed()
        engine = Engine(spoilt_model, limits=LIMITS, observer=watch)
        device = Device(engine)
        device.open(prompt=(5, 6, 7), params=GREEDY, max_tokens=12, drafting=drafts)
        for path in range(1, 40):
            if drafts and 1 not in device.ended:
                device.draft(len(device.sequences[1]), [9, SPOILT_ROW], path=path)
            engine.step()
        assert watch.failures == []
        assert (watch.blocks > 0) is drafts
        answers.append(device.answer())
    assert len(answers[0]) == 12
    assert answers[0] == answers[1]
