"""Optional libraries of the exporter: which are installed, and what to say when one is not."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from types import ModuleType

from ..protocol.errors import MissingDependencyError

__all__ = ["REPORTED_LIBRARIES", "describe_versions", "installed_versions", "is_installed", "require"]

REPORTED_LIBRARIES = ("transformers", "torch", "onnxruntime-genai", "onnxruntime", "optimum-onnx", "onnx-ir")


def installed_versions() -> dict[str, str]:
    """Distribution name to version of the libraries that decide what can be exported; absent ones are left out."""
    versions = {}
    for name in REPORTED_LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def describe_versions(*names: str) -> str:
    """``transformers 4.57.6, optimum-onnx absent``: the given libraries in one phrase, for error messages."""
    versions = installed_versions()
    return ", ".join(f"{name} {versions.get(name, 'absent')}" for name in names)


def is_installed(module: str) -> bool:
    """Whether ``module`` could be imported, without importing what is inside it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def require(module: str, *, extra: str = "export") -> ModuleType:
    """Import an optional module.

    Raises:
        MissingDependencyError: it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        missing = error.name or module
        raise MissingDependencyError(f'{missing} is not installed; run: pip install "draftwire[{extra}]"') from error
