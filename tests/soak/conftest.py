"""Load that takes minutes under ``make soak``, and seconds otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.target import Block, Target
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from numpy.typing import NDArray

from ..integration.table_bundle import right_table, write_bundle, wrong_table
from ..integration.table_targets import endless_table
from ..integration.verifier_process import make_tiny_model


@pytest.fixture(autouse=True)
def few_arenas(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator of the processes that a test starts is set as `deploy/` sets it."""
    monkeypatch.setenv("MALLOC_ARENA_MAX", "2")


@pytest.fixture(scope="session")
def minutes() -> float:
    """How long a soak takes: ``DRAFTWIRE_SOAK`` minutes, or a tenth of one."""
    return float(os.environ.get("DRAFTWIRE_SOAK", "0.1"))


@pytest.fixture(scope="session")
def soaking() -> bool:
    """Whether the long versions are asked for."""
    return "DRAFTWIRE_SOAK" in os.environ


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See :func:`make_tiny_model`."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def soak_drafts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Drafts for :func:`endless_table`: one that is always right, one that is always wrong."""
    folder, target = tmp_path_factory.mktemp("drafts"), endless_table()
    return [
        write_bundle(folder / name, target, make(target))
        for name, make in {"right": right_table, "wrong": wrong_table}.items()
    ]


@pytest.fixture(scope="session")
def tiny_drafts(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> list[Path]:
    """Drafts for the tiny model: one that knows what it says after two tokens, one that says what it likes least."""
    target = TransformersTarget.load(str(tiny_model), dtype="float32", threads=1)
    table, folder = after_two_tokens(target), tmp_path_factory.mktemp("tiny-drafts")
    return [write_bundle(folder / "near", target, table), write_bundle(folder / "far", target, -table)]


def after_two_tokens(target: Target) -> NDArray[np.float32]:
    """Logits for every pair of last tokens, as :func:`right_table` orders them; where there is no token, token 0."""
    size = target.info.vocabulary_size
    pairs = [[max(before, 0), max(newest, 0)] for before in range(-1, size) for newest in range(-1, size)]
    rows = []
    for pair in pairs:
        target.open(1, len(pair), room=len(pair))
        rows.append(target.step([Block(1, 0, pair, 1)])[0][0])
        target.close(1)
    return np.stack(rows)
