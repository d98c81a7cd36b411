"""Bundles for the table targets, written once a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .running_verifier import RunningVerifier, running_verifier
from .table_bundle import one_hot_table, right_table, write_bundle, wrong_table
from .table_targets import endless_table


@pytest.fixture(scope="session")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Draft bundles for :func:`endless_table` by name: ``right``, ``wrong``, ``one-hot``."""
    folder, target = tmp_path_factory.mktemp("drafts"), endless_table()
    tables = {"right": right_table, "wrong": wrong_table, "one-hot": one_hot_table}
    return {name: write_bundle(folder / name, target, make(target)) for name, make in tables.items()}


@pytest.fixture
def right_draft(drafts: dict[str, Path]) -> Path:
    """A draft that is the target itself."""
    return drafts["right"]


@pytest.fixture
async def verifier() -> AsyncIterator[RunningVerifier]:
    """Of a target whose text never ends by itself, with a context that is soon full."""
    async with running_verifier(endless_table(), max_context=300) as running:
        yield running
