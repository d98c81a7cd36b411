"""The traced graph, by optimum-onnx: slower than the fused one, but it serves many more architectures."""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import UnsupportedModelError
from .builder_process import BuilderFailedError, run_builder
from .dependencies import describe_versions, is_installed, require

__all__ = ["build_optimum", "optimum_available"]

_BUILDER = "optimum.exporters.onnx"


def optimum_available() -> bool:
    """Whether optimum-onnx is installed."""
    return is_installed("optimum") and is_installed(_BUILDER)


def build_optimum(folder: Path, work: Path, *, trust_remote_code: bool = False, verbose: bool = False) -> Path:
    """Build ``work/optimum/model.onnx`` in fp32, with past, from the Hugging Face folder ``folder``.

    Raises:
        MissingDependencyError: optimum-onnx is not installed.
        UnsupportedModelError: optimum cannot export this model.
    """
    if not optimum_available():
        require(_BUILDER, extra="optimum")
    out = work / "optimum"
    arguments = ["--model", str(folder), "--task", "text-generation-with-past", "--framework", "pt"]
    arguments += ["--dtype", "fp32", "--device", "cpu", "--no-post-process"]
    if trust_remote_code:
        arguments.append("--trust-remote-code")
    try:
        run_builder(_BUILDER, [*arguments, str(out)], log=work / "optimum.log", verbose=verbose)
    except BuilderFailedError as error:
        raise UnsupportedModelError(
            f"optimum cannot export this model ({error.reason}) "
            f"with {describe_versions('optimum-onnx', 'transformers')}"
        ) from error
    return out / "model.onnx"
