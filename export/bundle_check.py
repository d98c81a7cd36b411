"""Checking a bundle that exists: its hashes, its graph, and its agreement with the model it was made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..protocol.errors import BundleCorruptError, FingerprintMismatchError, ParityError
from ..protocol.manifest import Manifest
from .dependencies import require
from .graph_runner import GraphRunner
from .parity import BLOCKS, EXACT, PASTS, ROUNDED, check_cache, compare
from .reference import Continuation, load_references
from .source import opened_source
from .terminal import Say, say_nothing
from .torch_model import TorchModel
from .vocabulary import vocabulary_spec

__all__ = ["CheckResult", "check_bundle"]

_REPRODUCED = 0.95  # other processors sum in another order, which flips near-ties only


@dataclass(frozen=True, slots=True)
class CheckResult:
    """``reproduced``: share of the draft's recorded choices made again here. ``against``: what it was compared with.

    ``manifest`` carries the figures measured now, not the recorded ones.
    """

    manifest: Manifest
    reproduced: float
    against: str


def check_bundle(
    folder: Path,
    *,
    model: str | None = None,
    threads: int = 1,
    trust_remote_code: bool = False,
    verbose: bool = False,
    say: Say = say_nothing,
) -> CheckResult:
    """Verify a bundle's files, run its graph, and compare it with ``model`` or with what was recorded of it.

    ``say`` is told of each stage as it begins.

    Raises:
        BundleNotFoundError, BundleCorruptError: the bundle is not whole.
        FingerprintMismatchError: ``model`` has another vocabulary.
        NonFiniteLogitsError, ParityError: the graph does not do what the manifest says.
    """
    manifest = Manifest.load(folder)
    say(f"Verifying the files of {folder}")
    manifest.verify(folder)
    require("onnxruntime")
    if manifest.parity is None:
        raise BundleCorruptError(f"{folder} records no parity figures; export the draft again")
    recorded, tops = load_references(folder)
    against, continuations = "the recorded reference", recorded
    if model is not None:
        against = model
        say(f"Running the model {model} on the fixed prompts")
        continuations = _recorded_now(model, manifest, trust_remote_code=trust_remote_code, verbose=verbose)
    say("Checking and timing the graph")
    longest = max(len(item.token_ids) for item in (*recorded, *continuations))
    runner = GraphRunner(
        folder / manifest.graph.file,
        graph=manifest.graph,
        kv=manifest.kv,
        capacity=min(manifest.context_length, max(longest, max(PASTS) + max(BLOCKS))),
        threads=threads,
    )
    capacity = min(manifest.context_length, max(PASTS) + max(BLOCKS))
    tolerance = EXACT if manifest.quantization.scheme == "none" else ROUNDED
    check_cache(runner, recorded[0].token_ids, capacity=capacity, tolerance=tolerance)
    again = compare(runner, recorded, vocabulary=manifest.vocabulary.size)
    matches = [
        found == top
        for mine, theirs in zip(again.top_ids, tops, strict=True)
        for found, top in zip(mine, theirs, strict=True)
    ]
    reproduced = sum(map(bool, matches)) / len(matches)
    if reproduced < _REPRODUCED:
        raise ParityError(
            f"the draft in {folder} makes only {reproduced:.2f} of its recorded choices on this machine; export it here"
        )
    comparison = again if model is None else compare(runner, continuations, vocabulary=manifest.vocabulary.size)
    if comparison.agreement < manifest.parity.threshold:
        raise ParityError(
            f"the draft in {folder} agrees with {against} only {comparison.agreement:.2f} of the time, below its "
            f"threshold {manifest.parity.threshold:.2f}; export it again"
        )
    at = min(128, manifest.context_length // 2)
    parity = replace(
        manifest.parity,
        top1_agreement=comparison.agreement,
        max_difference=comparison.difference if model is not None else manifest.parity.max_difference,
        positions=comparison.positions,
        ms_per_token=runner.milliseconds_per_token(at=at, steps=min(24, manifest.context_length // 4)),
        threads=threads,
    )
    return CheckResult(replace(manifest, parity=parity), reproduced, against)


def _recorded_now(model: str, manifest: Manifest, *, trust_remote_code: bool, verbose: bool) -> list[Continuation]:
    """What the torch model says to the fixed prompts, if it is of the draft's vocabulary."""
    for module in ("torch", "transformers"):
        require(module)
    with opened_source(model, trust_remote_code=trust_remote_code, verbose=verbose) as source:
        torch_model = TorchModel(source, trust_remote_code=trust_remote_code, verbose=verbose)
        specification = vocabulary_spec(torch_model.tokenizer, logits_size=torch_model.size, eos_ids=())
        if specification.fingerprint != manifest.vocabulary.fingerprint:
            raise FingerprintMismatchError(
                f"{source.name} has another vocabulary than the draft made from {manifest.source.model}"
            )
        continuations = torch_model.record().continuations
    room = manifest.context_length
    return [item for item in continuations if len(item.token_ids) <= room]
