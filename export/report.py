"""What an export measured, in words: the recommendation and the table that the command line prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..protocol.manifest import Manifest, ParityReport
from .quantize import Scheme

__all__ = ["as_json", "comparison_table", "recommend", "report_table"]

_WORTHWHILE = 0.03  # agreement below this is within the noise of the prompt set
_TOO_SLOW = 1.6  # times the fastest

# What the demo model gave (docs/export.md), to say what to expect of a scheme that was not measured here.
_KNOWN = (
    "On the demo model int8 agreed {int8} of the time where int4 agreed {int4}, at about one and a half "
    "times the time a token and 1.7 times the size"
)
DEMO_FIGURES = {"int4": 0.72, "int8": 0.94}


def recommend(scheme: Scheme, parity: ParityReport, others: Mapping[Scheme, ParityReport] | None = None) -> str:
    """Which quantization to use, in plain words with the figures it rests on.

    ``others``: reports of every scheme, ``scheme`` included, where they were all measured.
    """
    if others:
        return _from_measurements(others)
    measured = f"{scheme} agrees with the model {parity.top1_agreement:.2f} of the time at {_cost(parity)}"
    if scheme == "int4":
        known = _KNOWN.format(**DEMO_FIGURES)
        return f"{measured}. {known}: if the size is acceptable, prefer --quantize int8; --compare measures all three"
    if scheme == "int8":
        return f"{measured}. Keep it, unless the download must shrink: int4 is about 0.6 of the size and agrees less"
    return f"{measured}. fp32 is for comparison: int8 is several times smaller, faster, and agrees nearly as often"


def _from_measurements(reports: Mapping[Scheme, ParityReport]) -> str:
    fastest = min(report.ms_per_token for report in reports.values())
    quick = {name: item for name, item in reports.items() if item.ms_per_token <= _TOO_SLOW * fastest}
    best = max(item.top1_agreement for item in quick.values())
    chosen = min(
        (name for name, item in quick.items() if item.top1_agreement >= best - _WORTHWHILE),
        key=lambda name: quick[name].model_bytes,
    )
    figures = "; ".join(
        f"{name} {report.top1_agreement:.2f} at {_cost(report)}" for name, report in reports.items() if name != chosen
    )
    won = reports[chosen]
    return f"use {chosen}: it agrees {won.top1_agreement:.2f} of the time at {_cost(won)} (beside it: {figures})"


def _cost(report: ParityReport) -> str:
    return f"{report.ms_per_token:.1f} ms a token and {report.model_bytes / 1e6:.0f} MB"


def report_table(manifest: Manifest) -> str:
    """The lines printed after an export or a check."""
    parity, kv, scheme = manifest.parity, manifest.kv, manifest.quantization
    rows = [
        ("model", f"{manifest.name} ({manifest.architecture})"),
        ("builder", f"{manifest.builder}, {kv.layout.replace('_', ' ')} cache, {kv.layers} layers"),
        ("weights", f"{scheme.scheme}" + (f", block {scheme.block_size}" if scheme.block_size else "")),
        ("context", f"{manifest.context_length} tokens"),
    ]
    if parity is not None:
        rows += [
            ("size", f"{parity.model_bytes / 1e6:.1f} MB, {parity.size_ratio:.2f} of the fp32 weights"),
            ("top-1 agreement", f"{parity.top1_agreement:.3f} over {parity.positions} positions"),
            ("largest difference", f"{parity.max_difference:.3g} (logits)"),
            ("time", f"{parity.ms_per_token:.1f} ms a token on {_threads(parity.threads)}"),
        ]
    lines = [f"  {name:<19}{value}" for name, value in rows]
    lines += [f"  {'note' if not index else '':<19}{note}" for index, note in enumerate(scheme.notes)]
    if parity is not None and parity.recommendation:
        lines.append(f"  {'recommendation':<19}{parity.recommendation}")
    return "\n".join(lines)


def _threads(count: int) -> str:
    return f"{count} thread" + ("s" if count != 1 else "")


def comparison_table(reports: Mapping[Scheme, ParityReport]) -> str:
    """All measured quantizations side by side."""
    lines = [f"  {'weights':<9}{'agreement':>10}{'ms/token':>10}{'MB':>8}{'of fp32':>9}"]
    for name, item in reports.items():
        figures = f"{item.top1_agreement:>10.3f}{item.ms_per_token:>10.1f}{item.model_bytes / 1e6:>8.1f}"
        lines.append(f"  {name:<9}{figures}{item.size_ratio:>9.2f}")
    return "\n".join(lines)


def as_json(manifest: Manifest, out: str, others: Mapping[Scheme, ParityReport] | None = None) -> dict[str, object]:
    """What ``--json`` prints."""
    from dataclasses import asdict

    fields: Sequence[str] = ("name", "architecture", "builder", "context_length", "quantization", "kv", "parity")
    everything = asdict(manifest)
    result: dict[str, object] = {"bundle": out} | {name: everything[name] for name in fields}
    if others:
        result["compared"] = {name: asdict(report) for name, report in others.items()}
    return result
