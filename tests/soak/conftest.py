"""Load that takes minutes under ``make soak``, and seconds otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
