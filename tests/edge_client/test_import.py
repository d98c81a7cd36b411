"""The edge install stands alone: it imports and drafts where torch and transformers cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "onnx", "optimum", "draftwire.cloud_verifier", "draftwire.export")

LOADED = """
import importlib, pkgutil, sys
import draftwire.edge_client as package
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"draftwire.edge_client.{module.name}")
print(*sorted(set(sys.argv[1].split(",")) & sys.modules.keys()))
"""
DRAFT_WITHOUT = """
import sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
from draftwire.edge_client.bundle import DraftBundle
from draftwire.edge_client.chat_template import encode_messages
from draftwire.protocol.detokenizer import IncrementalDetokenizer
bundle = DraftBundle.load(sys.argv[1])
drafter = bundle.load_drafter()
ids = encode_messages([{"role": "user", "content": "hi"}], template=bundle.chat_template, tokenizer=bundle.tokenizer)
text = IncrementalDetokenizer(bundle.tokenizer, ids)
drafter.sync(ids)
token, drafted = ids[-1], []
for _ in range(8):
    token = int(drafter.feed([token]).argmax())
    drafted.append(token)
assert text.push(drafted) + text.finish() == bundle.tokenizer.decode(drafted)
print(len(drafted))
"""


def run(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_every_module_loads_nothing_heavy() -> None:
    assert run(LOADED, ",".join(HEAVY)) == ""


def test_drafts_where_torch_and_transformers_cannot_be_imported(fused_bundle: Path) -> None:
    assert run(DRAFT_WITHOUT, str(fused_bundle), ",".join(HEAVY)) == "8"


MISSING = """
import sys
sys.modules[sys.argv[1]] = None
from draftwire.protocol.errors import MissingDependencyError
try:
    import draftwire.edge_client.bundle
except MissingDependencyError as error:
    print(error)
"""


@pytest.mark.parametrize("name", ["onnxruntime", "tokenizers", "jinja2"])
def test_a_missing_dependency_names_the_extra(name: str) -> None:
    assert run(MISSING, name) == f"{name} is not installed; install draftwire[edge]"
