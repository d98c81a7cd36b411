"""The repository keeps its own rules: one door for each third-party library, and honest public names."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("protocol", "edge_client", "cloud_verifier", "export")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))

DOORS = {
    "websockets": {"edge_client/transport.py"},
    "aiohttp": {"cloud_verifier/service/server.py", "cloud_verifier/service/exchange.py"},
    "prometheus_client": {"cloud_verifier/operations/metrics.py"},
    "opentelemetry": {"cloud_verifier/operations/tracing.py"},
    "matplotlib": {"edge_client/bench/chart.py"},
    # The exporter checks its graphs on the runtime that devices use, in one file of its own.
    "onnxruntime": {"edge_client/onnx_runtime.py", "export/graph_runner.py", "export/graph_quantizer.py"},
}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("draftwire", *(part for part in parts if part != "__init__")))


def _imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("library", sorted(DOORS))
def test_third_party_io_stays_at_its_door(library: str) -> None:
    users = {
        str(path.relative_to(ROOT)) for path in SOURCES if library in _imported(ast.parse(path.read_text("utf-8")))
    }
    assert users <= DOORS[library]
    assert users, f"nothing imports {library}; the rule has gone stale"


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_public_names_exist(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    module = importlib.import_module(_module(path))
    names = getattr(module, "__all__", None)
    defines = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
    if names is None:
        assert not defines, "a module that defines something says in __all__ what is public"
        return
    assert len(set(names)) == len(names)
    for name in names:
        assert hasattr(module, name)


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_every_public_definition_is_documented(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    if path.read_text("utf-8").strip():
        assert ast.get_docstring(tree), "a module says what it is"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@pytest.mark.parametrize("path", SOURCES, ids=_module)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 450
