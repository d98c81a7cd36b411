"""The fused graph, by ONNX Runtime GenAI's model builder.

Its graphs use GroupQueryAttention with a KV buffer written in place, packed projections and skip-norms, and run on
plain onnxruntime, several times faster than a traced graph. It is always asked for fp32: quantizing happens here,
so that every scheme is made the same way whatever built the graph.
"""

from __future__ import annotations

from pathlib import Path

from ..protocol.errors import UnsupportedModelError
from .builder_process import BuilderFailedError, run_builder
from .dependencies import describe_versions, is_installed, require

__all__ = ["build_fused"]

_WORKER = "draftwire.export.fused_worker"


def build_fused(
    folder: Path, work: Path, *, tied: bool, trust_remote_code: bool = False, verbose: bool = False
) -> Path:
    """Build ``work/fused/model.onnx`` in fp32 from the Hugging Face folder ``folder``.

    ``tied``: input embedding and output head are one weight, to be stored once.

    Raises:
        MissingDependencyError: onnxruntime-genai is not installed.
        UnsupportedModelError: the builder cannot make this model.
    """
    if not is_installed("onnxruntime_genai"):
        require("onnxruntime_genai")
    out = work / "fused"
    options = {
        "hf_remote": trust_remote_code,
        "shared_embeddings": tied,
        # Rollback needs every past position to stay in the buffer; a window-sized ring forgets them.
        "windowed_kv_cache": False,
    }
    extra = [f"{name}={str(value).lower()}" for name, value in options.items()]
    arguments = ["-m", folder.name, "-i", str(folder), "-o", str(out), "-p", "fp32", "-e", "cpu"]
    arguments += ["-c", str(work / "cache"), "--extra_options", *extra]
    try:
        run_builder(_WORKER, arguments, log=work / "fused.log", verbose=verbose)
    except BuilderFailedError as error:
        raise UnsupportedModelError(
            f"the fused builder cannot make this model ({error.reason}) "
            f"with {describe_versions('onnxruntime-genai', 'transformers')}"
        ) from error
    return out / "model.onnx"
