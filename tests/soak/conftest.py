"""Load that takes minutes under ``make soak``, and seconds otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ..integration.harness import endless_table
from ..integration.table_bundle import right_table, write_bundle, wrong_table
from ..integration.verifier_process import make_tiny_model


@pytest.fixture(scope="session")
def minutes() -> float:
    """How long a soak takes: ``DRAFTWIRE_SOAK`` minutes, or a third of one."""
    return float(os.environ.get("DRAFTWIRE_SOAK", "0.33"))


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
