"""One export from beginning to end: torch reference, fp32 graph, quantized graph, checks, bundle."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..protocol.errors import InvalidParameterError, ParityError, UnsupportedModelError
from ..protocol.manifest import Manifest, ParityReport, QuantizationSpec, SourceSpec
from .bundle_writer import demand_writable, finish, model_bytes, publish, save_graph
from .dependencies import describe_versions, installed_versions, require
from .fused_builder import build_fused
from .graph_quantizer import quantize_graph
from .graph_reader import GraphFacts, load_graph, read_graph
from .graph_runner import GraphRunner
from .optimum_builder import build_optimum, optimum_available
from .parity import BLOCKS, EXACT, PASTS, ROUNDED, Comparison, check_cache, compare, fits_beyond_window
from .quantize import BLOCK_SIZES, Scheme
from .reference import Reference, save_references
from .report import recommend
from .source import SourceModel, opened_source
from .terminal import Say, say_nothing
from .torch_model import TorchModel
from .vocabulary import TokenizerFiles, read_tokenizer, vocabulary_spec
from .work_folder import work_folder

__all__ = ["THRESHOLDS", "BuilderName", "ExportOptions", "ExportResult", "default_threads", "export_draft"]

BuilderName = Literal["fused", "optimum"]
SCHEMES: tuple[Scheme, ...] = ("int4", "int8", "none")
THRESHOLDS: dict[Scheme, float] = {"int4": 0.5, "int8": 0.85, "none": 0.99}
_TIMED_AT = 128  # tokens in the cache while a step is timed


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """``threshold`` None: the scheme's own (:data:`THRESHOLDS`). ``block_size`` None: the scheme's own.

    ``say`` is told of each stage as it begins.
    """

    quantize: Scheme = "int4"
    block_size: int | None = None
    builder: Literal["auto", "fused", "optimum"] = "auto"
    threshold: float | None = None
    threads: int | None = None
    trust_remote_code: bool = False
    compare: bool = False
    keep_failed: bool = False
    verbose: bool = False
    say: Say = say_nothing

    def __post_init__(self) -> None:
        if self.block_size is not None and self.block_size not in BLOCK_SIZES:
            raise InvalidParameterError("--block-size", f"must be one of {', '.join(map(str, BLOCK_SIZES))}")
        if self.block_size is not None and self.quantize == "none":
            raise InvalidParameterError("--block-size", "has no meaning with --quantize none")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise InvalidParameterError("--threshold", "must be between 0 and 1")
        if self.threads is not None and self.threads < 1:
            raise InvalidParameterError("--threads", "must be at least 1")


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The bundle's manifest, and the reports of all quantizations where they were compared."""

    manifest: Manifest
    compared: dict[Scheme, ParityReport] | None = None


def default_threads() -> int:
    """Half the cores, at least one: what a draft on a device should take."""
    import os

    return max(1, (os.cpu_count() or 1) // 2)


def export_draft(model: str, out: Path, options: ExportOptions) -> ExportResult:
    """Export ``model`` (hub id, Hugging Face folder or GGUF file) as a draft bundle at ``out``.

    Raises:
        InvalidParameterError: ``out`` is taken by something else than a bundle.
        ModelNotFoundError, UnsupportedModelError, MissingDependencyError: nothing could be built.
        NonFiniteLogitsError, ParityError: what was built must not be used; nothing is left at ``out``.
    """
    for module in ("torch", "transformers", "onnx_ir", "onnxruntime"):
        require(module)
    demand_writable(out)
    options.say(f"Reading the model {model}")
    with (
        opened_source(model, trust_remote_code=options.trust_remote_code, verbose=options.verbose) as source,
        tempfile.TemporaryDirectory(prefix="draftwire-export-") as work,
        work_folder(out, say=options.say) as folder,
    ):
        return _Export(source, Path(work), options).run(folder, out)


@dataclass(frozen=True, slots=True)
class _Built:
    """An fp32 graph that has been found equal to the torch model."""

    path: Path
    builder: BuilderName
    facts: GraphFacts
    context_length: int
    notes: tuple[str, ...]


class _Export:
    """The state of one export: the model's reference, and the options."""

    def __init__(self, source: SourceModel, work: Path, options: ExportOptions) -> None:
        self._source = source
        self._work = work
        self._options = options
        self._threads = options.threads or default_threads()
        torch_model = TorchModel(source, trust_remote_code=options.trust_remote_code, verbose=options.verbose)
        self._say = options.say
        self._say("Running the model on the fixed prompts")
        self._tokenizer: TokenizerFiles = read_tokenizer(torch_model.tokenizer)
        self._reference: Reference = torch_model.record()
        self._vocabulary = vocabulary_spec(
            torch_model.tokenizer, logits_size=torch_model.size, eos_ids=self._reference.eos_ids
        )

    def run(self, folder: Path, out: Path) -> ExportResult:
        built = self._build()
        scheme = self._options.quantize
        specification, comparison, parity = self._quantize(built, scheme, folder)
        compared = self._compare_schemes(built, parity) if self._options.compare else None
        parity = replace(parity, recommendation=recommend(scheme, parity, compared))
        save_references(folder, self._reference.continuations, comparison.top_ids)
        manifest = Manifest(
            name=self._source.name,
            architecture=self._reference.architecture,
            builder=built.builder,
            context_length=built.context_length,
            source=SourceSpec(model=self._source.name, sha256=self._source.sha256, versions=installed_versions()),
            vocabulary=replace(self._vocabulary, logits_size=built.facts.logits_size),
            kv=built.facts.kv,
            graph=built.facts.graph,
            quantization=replace(specification, notes=[*specification.notes, *built.notes]),
            parity=parity,
        )
        manifest = finish(folder, manifest, self._tokenizer)
        if parity.top1_agreement < parity.threshold:
            self._refuse(folder, out, parity)
        publish(folder, out)
        return ExportResult(manifest, compared)

    def _build(self) -> _Built:
        """The fp32 graph, by the builder asked for or by the first that serves this model."""
        reasons = []
        wanted = self._options.builder
        for name in ("fused", "optimum") if wanted == "auto" else (wanted,):
            if name == "optimum" and wanted == "auto" and not optimum_available():
                reasons.append('optimum is not installed (pip install "draftwire[optimum]")')
                continue
            try:
                return self._verified(self._build_with(name), name)
            except (UnsupportedModelError, ParityError) as error:
                reasons.append(str(error))
        versions = describe_versions("transformers", "onnxruntime-genai", "optimum-onnx")
        raise UnsupportedModelError(
            f"{self._source.name} ({self._reference.architecture}) cannot be exported with {versions}: "
            f"{'; '.join(reasons)}; use another model of the same tokenizer, or other versions (docs/export.md)"
        )

    def _build_with(self, name: BuilderName) -> Path:
        self._say(f"Building the graph with the {name} builder")
        trust, verbose = self._options.trust_remote_code, self._options.verbose
        if name == "optimum":
            return build_optimum(self._source.folder, self._work, trust_remote_code=trust, verbose=verbose)
        return build_fused(
            self._source.folder, self._work, tied=self._reference.tied, trust_remote_code=trust, verbose=verbose
        )

    def _verified(self, path: Path, builder: BuilderName) -> _Built:
        """Hold the fp32 graph against the torch model before anything is made of it.

        Raises:
            ParityError: the builder made a graph that is not this model.
        """
        self._say("Checking the graph against the model")
        facts = read_graph(load_graph(path))
        context, notes = self._reference.context_length, self._reference.notes
        if facts.positions is not None and facts.positions < context:
            context = facts.positions
        runner = self._runner(path, facts, context)
        comparison = compare(runner, self._reference.continuations, vocabulary=self._vocabulary.size)
        if comparison.agreement < THRESHOLDS["none"]:
            raise ParityError(
                f"the {builder} builder made an fp32 graph that agrees with the model only "
                f"{comparison.agreement:.3f} of the time, so it is wrong"
            )
        window = self._reference.window
        vocabulary = self._vocabulary.size
        if (
            window is not None
            and window < context
            and not fits_beyond_window(runner, self._reference, vocabulary=vocabulary)
        ):
            notes = (
                *notes,
                f"context cut from {context} to {window}, the model's sliding window: the exported graph was not shown "
                "to equal the model beyond it",
            )
            context = window
        return _Built(path, builder, facts, context, notes)

    def _runner(self, path: Path, facts: GraphFacts, context: int) -> GraphRunner:
        lengths = [len(item.token_ids) for item in self._reference.continuations]
        lengths += [len(self._reference.long_ids), max(PASTS) + max(BLOCKS), _TIMED_AT + 64]
        capacity = min(context, max(lengths))
        return GraphRunner(path, graph=facts.graph, kv=facts.kv, capacity=capacity, threads=self._threads)

    def _quantize(
        self, built: _Built, scheme: Scheme, folder: Path
    ) -> tuple[QuantizationSpec, Comparison, ParityReport]:
        """Make and measure one quantization of the built graph in ``folder``."""
        self._say("Writing the fp32 graph" if scheme == "none" else f"Quantizing to {scheme}")
        block_size = self._options.block_size if scheme == self._options.quantize else None
        model = load_graph(built.path)
        specification = quantize_graph(model, scheme, block_size=block_size)
        path = save_graph(model, folder)
        context = built.context_length
        self._say(f"Checking and timing the {'fp32' if scheme == 'none' else scheme} graph")
        runner = self._runner(path, built.facts, context)
        comparison = compare(runner, self._reference.continuations, vocabulary=self._vocabulary.size)
        capacity = min(context, max(PASTS) + max(BLOCKS))
        tolerance = EXACT if scheme == "none" else ROUNDED
        check_cache(runner, self._reference.continuations[0].token_ids, capacity=capacity, tolerance=tolerance)
        size = model_bytes(folder)
        threshold = self._options.threshold
        parity = ParityReport(
            top1_agreement=comparison.agreement,
            max_difference=comparison.difference,
            ms_per_token=runner.milliseconds_per_token(at=min(_TIMED_AT, context // 2), steps=min(24, context // 4)),
            threads=self._threads,
            model_bytes=size,
            size_ratio=size / self._reference.weight_bytes,
            positions=comparison.positions,
            threshold=THRESHOLDS[scheme] if threshold is None else threshold,
        )
        return specification, comparison, parity

    def _compare_schemes(self, built: _Built, done: ParityReport) -> dict[Scheme, ParityReport]:
        """Every quantization measured, the one asked for included."""
        reports: dict[Scheme, ParityReport] = {}
        for scheme in SCHEMES:
            if scheme == self._options.quantize:
                reports[scheme] = done
                continue
            with tempfile.TemporaryDirectory(dir=self._work) as folder:
                reports[scheme] = self._quantize(built, scheme, Path(folder))[2]
        return reports

    def _refuse(self, folder: Path, out: Path, parity: ParityReport) -> None:
        kept = ""
        if self._options.keep_failed:
            failed = out.with_name(f"{out.name}.failed")
            demand_writable(failed)
            publish(folder, failed)
            kept = f"; kept for inspection at {failed}"
        raise ParityError(
            f"the {self._options.quantize} draft agrees with {self._source.name} only {parity.top1_agreement:.2f} of "
            f"the time, below the threshold {parity.threshold:.2f}: use --quantize int8 or none, a smaller "
            f"--block-size, or a lower --threshold{kept}"
        )
