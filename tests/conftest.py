"""The demo pair, for tests marked ``demo``: real weights, fetched and exported once into the user's cache."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from draftwire.protocol.errors import DraftwireError

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # In the background of a script interrupts are ignored, and the programs that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_target_folder() -> Path:
    """The demo target as a Hugging Face folder."""
    return _folder("DRAFTWIRE_DEMO_TARGET", "target_folder")


@pytest.fixture(scope="session")
def demo_draft_folder() -> Path:
    """The demo target's own int4 draft bundle."""
    return _folder("DRAFTWIRE_DEMO_DRAFT", "draft_folder")


def _folder(variable: str, maker: str) -> Path:
    """The folder that an environment variable names, or else the cached one, made if need be."""
    given = os.environ.get(variable)
    if given:
        if not Path(given).is_dir():
            pytest.fail(f"{variable} names {given}, which is no folder")
        return Path(given)
    try:
        from draftwire.export import demo_model

        make: Callable[..., Path] = getattr(demo_model, maker)
        return make(quiet=True)
    except (ImportError, DraftwireError) as error:
        pytest.skip(f"no demo pair: {error}; run draftwire-export demo-model, or set {variable}")
