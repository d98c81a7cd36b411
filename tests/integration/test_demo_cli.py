"""``draftwire demo``, run as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.demo
@pytest.mark.skipif("DRAFTWIRE_DEMO_TARGET" in os.environ, reason="the command takes the cached pair, not a given one")
def test_compares_both_ways_to_answer(demo_target_folder: Path, demo_draft_folder: Path) -> None:
    assert demo_target_folder.is_dir()
    assert demo_draft_folder.is_dir()
    command = [sys.executable, "-m", "draftwire.edge_client.cli", "demo", "--rtt", "5", "--max-tokens", "24"]
    done = subprocess.run([*command, "--dtype", "float32", "--json"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["same_text"] is True
    assert figures["cloud_only"]["tokens"] == figures["with_draft"]["tokens"] == 24
    assert figures["cloud_only"]["target_passes_per_token"] == 1
    assert figures["with_draft"]["acceptance_rate"] is not None


@pytest.mark.parametrize(("option", "value"), [("--rtt", "-1"), ("--max-tokens", "1")])
def test_a_bad_value_is_wrong_usage_and_named(option: str, value: str) -> None:
    command = [sys.executable, "-m", "draftwire.edge_client.cli", "demo", f"{option}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith(f"draftwire: error: {option}: ")
