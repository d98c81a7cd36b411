"""``draftwire doctor``: is everything in order between this device and the verifier, what to expect, what to change?"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib import metadata
from typing import Any

from ...protocol.errors import DraftwireError, InvalidParameterError
from ..advice import advise
from ..checkup import Checkup
from ..client import AsyncEdgeClient
from ..forecast import ANSWER, PAYS, STEEPEST, Forecast, Measured, forecast, forecasts
from ..stats import Stats
from .options import add_connection_options, api_key

__all__ = ["register"]

_Report = dict[str, Any]

_PLACES = 6
"""Of how many draft tokens in a row it is told how often they were accepted."""

_MARKS = {"problem": "!!", "warning": "! ", "note": "- ", "fine": "ok"}


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="check verifier and draft, measure both, and say what to expect and what to change"
    )
    add_connection_options(parser)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter answers: faster, and less sure")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    report: _Report = {"versions": _versions(), "problems": []}
    asyncio.run(_examine(parsed, report))
    print(json.dumps(report, indent=2) if parsed.json else "\n".join(_lines(report)))
    return 1 if report["problems"] else 0


def _versions() -> dict[str, str]:
    names = ("draftwire", "onnxruntime", "tokenizers", "websockets", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


async def _examine(parsed: argparse.Namespace, report: _Report) -> None:
    """Go through everything in order; what cannot be reached any more is a problem, not a failure of the doctor."""
    async with AsyncEdgeClient(
        parsed.url, draft=parsed.draft, threads=parsed.threads, api_key=api_key(parsed)
    ) as client:
        checkup = Checkup(
            client=client,
            drafting=parsed.draft is not None,
            threads=parsed.threads,
            quick=parsed.quick,
            say=_say if sys.stderr.isatty() else lambda _: None,
        )
        try:
            await checkup.run()
        except InvalidParameterError:
            raise
        except DraftwireError as error:
            report["problems"].append(str(error))
    if checkup.reason is not None:
        report["problems"].append(checkup.reason)
    _report_ends(checkup, parsed.url, report)
    _report_figures(checkup, report)


def _say(stage: str) -> None:
    print(f"draftwire: {stage} ...", file=sys.stderr, flush=True)


# --- the report -----------------------------------------------------------------------------------------------------


def _report_ends(checkup: Checkup, url: str, report: _Report) -> None:
    if (welcome := checkup.welcome) is not None:
        report["verifier"] = {
            "url": url,
            "target": welcome.target,
            "protocol": welcome.version,
            "vocabulary_size": welcome.vocabulary_size,
            "fingerprint": welcome.fingerprint.hex(),
            "max_context": welcome.limits.max_context,
            "max_streams": welcome.limits.max_streams,
        }
    if (manifest := checkup.manifest) is not None:
        report["draft"] = {
            "name": manifest.name,
            "quantization": manifest.quantization.scheme,
            "fingerprint": manifest.vocabulary.fingerprint,
            "matches": checkup.matches,
        }


def _report_figures(checkup: Checkup, report: _Report) -> None:
    if checkup.pings:
        report["rtt_ms"] = 1000 * statistics.median(checkup.pings)
    measured = checkup.measured()
    if measured is None:
        return
    report["rtt_jitter_ms"] = 1000 * measured.jitter
    report["target_ms_per_step"] = 1000 * measured.step
    report["target_ms_per_step_p90"] = 1000 * measured.step_high
    report["samples"] = {
        "answers": len(checkup.samples),
        "tokens": measured.tokens,
        "temperature": 0.0,
        "quick": checkup.quick,
    }
    plain = [sample.plain.stats for sample in checkup.samples]
    drafted = [sample.drafted.stats for sample in checkup.samples if sample.drafted is not None]
    report["cloud_only_tokens_per_second"] = _rate(plain)
    report["ttft_ms"] = {"cloud_only": _ttft_ms(plain)}
    if measured.draft is not None:
        report["ttft_ms"]["drafting"] = _ttft_ms(drafted)
        _report_drafting(measured, drafted, [sample.ratio for sample in checkup.samples], report)
    if (with_drafts := checkup.steps_with_drafts()) is not None:
        report["target_ms_per_step_with_drafts"] = 1000 * with_drafts[0]
        report["draft_tokens_per_step"] = with_drafts[1]
    _report_forecast(measured, report)
    report["advice"] = [asdict(advice) for advice in advise(measured)]


def _report_drafting(measured: Measured, drafted: list[Stats], ratios: list[float | None], report: _Report) -> None:
    draft = measured.draft
    assert draft is not None
    tokens = sum(stats.committed for stats in drafted)
    tested = sum(stats.drafted for stats in drafted)
    rounds = sum(stats.target_passes - stats.run_ahead for stats in drafted)
    report["target_slope"] = measured.slope
    report["draft_ms_per_token"] = 1000 * draft.alone
    report["draft_ms_per_token_p90"] = 1000 * draft.alone_high
    report["draft_ms_per_token_streaming"] = 1000 * draft.streaming
    report["draft_cpu_share"] = draft.cpu_share
    report["threads"], report["cores"] = draft.threads, draft.cores
    report["stream_rtt_ms"] = None if draft.stream_rtt is None else 1000 * draft.stream_rtt
    report["right"] = {"all": draft.share, **draft.shares}
    report["agreed"] = sum(stats.agreed for stats in drafted) / tokens
    report["acceptance_rate"] = sum(stats.accepted for stats in drafted) / tested if tested else None
    report["accepted_by_position"] = [count / rounds for count in _by_position(drafted)] if rounds > 0 else []
    report["drafting_tokens_per_second"] = _rate(drafted)
    known = [ratio for ratio in ratios if ratio is not None]
    report["ratio"] = {"middle": draft.ratio, "least": min(known), "most": max(known)}
    report["target_passes_per_token"] = sum(stats.target_passes for stats in drafted) / tokens
    report["bytes_up_per_token"] = sum(stats.bytes_up for stats in drafted) / tokens
    report["bytes_down_per_token"] = sum(stats.bytes_down for stats in drafted) / tokens
    report["cpu_ms_per_token"] = 1000 * sum(stats.draft_cpu_seconds for stats in drafted) / tokens


def _report_forecast(measured: Measured, report: _Report) -> None:
    """Here, for answers as short as the samples, and elsewhere."""
    here, short = forecast(measured), forecast(measured, answer=0)
    if here is None or short is None:
        return
    report["predicted"] = _forecast_row(here)
    report["predicted_for_samples"] = _forecast_row(short)
    report["distances"] = [_forecast_row(there) for there in forecasts(measured) if there != here]


def _forecast_row(predicted: Forecast) -> dict[str, float]:
    return {
        "rtt_ms": 1000 * predicted.rtt,
        "cloud_only_tokens_per_second": predicted.cloud_only,
        "drafting_tokens_per_second": predicted.cloud_only * predicted.run_ahead,
        "ratio": predicted.run_ahead,
        "waiting_ratio": predicted.waiting,
        "serial_tokens_per_second": predicted.cloud_only * predicted.serial,
        "serial_ratio": predicted.serial,
        "target_passes_per_token": predicted.passes_per_token,
    }


def _rate(answers: list[Stats]) -> float:
    return statistics.harmonic_mean([stats.tokens_per_second for stats in answers])


def _ttft_ms(answers: list[Stats]) -> float:
    return 1000 * statistics.median([stats.ttft_seconds or 0.0 for stats in answers])


def _by_position(answers: list[Stats]) -> list[int]:
    counts = [0] * max(len(stats.accepted_by_position) for stats in answers)
    for stats in answers:
        for position, count in enumerate(stats.accepted_by_position):
            counts[position] += count
    return counts


# --- as text --------------------------------------------------------------------------------------------------------


def _lines(report: _Report) -> Iterator[str]:
    yield "versions     " + ", ".join(f"{name} {version}" for name, version in report["versions"].items())
    if verifier := report.get("verifier"):
        yield f"verifier     {verifier['target']} at {verifier['url']}, protocol {verifier['protocol']}"
        yield f"vocabulary   {verifier['vocabulary_size']} ids, fingerprint {verifier['fingerprint']}"
    if draft := report.get("draft"):
        verdict = "the same vocabulary" if draft["matches"] else f"ANOTHER vocabulary, {draft['fingerprint']}"
        yield f"draft        {draft['name']} ({draft['quantization']}), {verdict}"
    if "samples" in report:
        yield ""
        yield from _measured_lines(report)
    elif "rtt_ms" in report:
        yield f"round trip   {report['rtt_ms']:.1f} ms"
    if "predicted" in report:
        yield ""
        yield from _forecast_lines(report)
    if "advice" in report:
        yield ""
        for advice in report["advice"]:
            yield f"{_MARKS[advice['severity']]} {advice['finding']}"
            yield f"   -> {advice['action']}"
        yield ""
    yield from _closing_lines(report)


def _closing_lines(report: _Report) -> Iterator[str]:
    """What is broken and was not told as advice, then the verdict."""
    told = [(advice["severity"], advice["finding"]) for advice in report.get("advice", [])]
    for problem in report["problems"]:
        if ("problem", problem) not in told:
            yield f"problem      {problem}"
    warnings = sum(severity == "warning" for severity, _ in told)
    if report["problems"]:
        yield f"not in order; {_counted(len(report['problems']), 'problem')} above"
    elif warnings:
        yield f"nothing is broken; {_counted(warnings, 'warning')} above"
    else:
        yield "all is in order"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _measured_lines(report: _Report) -> Iterator[str]:
    samples, ways = report["samples"], "with and without the draft in turn" if "ratio" in report else "cloud-only"
    yield f"measured     {samples['answers']} greedy answers, {samples['tokens']} tokens in all, {ways}"
    if samples["quick"]:
        yield "             that is few; without --quick there are more, and the figures are surer"
    frames = ""
    if (stream_rtt := report.get("stream_rtt_ms")) is not None:
        frames = f"; draft to commit {stream_rtt:.1f} ms, without waiting and computing"
    yield f"round trip   {report['rtt_ms']:.1f} ms, one in ten at least {report['rtt_jitter_ms']:.1f} ms more{frames}"
    yield f"target       {report['target_ms_per_step']:.1f} ms a step{_with_drafts(report)}"
    if "ratio" not in report:
        yield f"first token  {report['ttft_ms']['cloud_only']:.0f} ms"
        yield f"cloud-only   {report['cloud_only_tokens_per_second']:.1f} tokens/s"
        return
    yield (
        f"draft        {report['draft_ms_per_token']:.1f} ms a token alone, "
        f"{report['draft_ms_per_token_streaming']:.1f} ms while text streams, on {report['threads']} of "
        f"{report['cores']} cores"
    )
    right = ", ".join(f"{task} {share:.2f}" for task, share in report["right"].items() if task != "all")
    yield f"right        {report['right']['all']:.2f} of the target's tokens, each guessed after right ones: {right}"
    if report["acceptance_rate"] is not None:
        yield (
            f"acceptance   {report['acceptance_rate']:.2f} of the draft tokens tested: after a wrong one, the rest of "
            "its round is lost too"
        )
    if shares := report["accepted_by_position"][:_PLACES]:
        least = ", ".join(str(place + 1) for place in range(len(shares)))
        told = ", ".join(f"{share:.2f}" for share in shares)
        yield f"             rounds that accepted at least {least} of them: {told}"
    ttft, ratio = report["ttft_ms"], report["ratio"]
    yield f"first token  {ttft['cloud_only']:.0f} ms without the draft, {ttft['drafting']:.0f} ms with it"
    yield f"cloud-only   {report['cloud_only_tokens_per_second']:.1f} tokens/s"
    yield (
        f"drafting     {report['drafting_tokens_per_second']:.1f} tokens/s, {ratio['middle']:.2f}x "
        f"({ratio['least']:.2f} to {ratio['most']:.2f})"
    )
    yield (
        f"a token      {report['target_passes_per_token']:.2f} target passes, {report['bytes_up_per_token']:.0f} bytes "
        f"up and {report['bytes_down_per_token']:.0f} down, {report['cpu_ms_per_token']:.1f} ms of the device's CPU"
    )


def _with_drafts(report: _Report) -> str:
    if "target_ms_per_step_with_drafts" not in report:
        return ""
    tokens = report["draft_tokens_per_step"]
    return (
        f", {report['target_ms_per_step_with_drafts']:.1f} ms with drafts in it, {tokens:.1f} draft tokens on average"
    )


def _forecast_lines(report: _Report) -> Iterator[str]:
    """The table, with the round trip that was measured in its place."""
    here, rows = report["predicted"], sorted([*report["distances"], report["predicted"]], key=lambda row: row["rtt_ms"])
    yield (
        f"predicted from these figures, for answers of {ANSWER} tokens; without the draft "
        f"{here['cloud_only_tokens_per_second']:.1f} tokens/s"
    )
    if report["target_slope"] > STEEPEST:
        yield (
            f"each draft token in a step is taken to cost {STEEPEST:.0%} of a step; {report['target_slope']:.0%} was "
            "measured, as on a busy machine"
        )
    yield f"{'round trip':>13}{'with the draft':>28}{'classic: draft, send, wait':>29}"
    for row in rows:
        yield (
            f"{row['rtt_ms']:>10.1f} ms{row['drafting_tokens_per_second']:>12.1f} tokens/s{row['ratio']:>6.2f}x"
            f"{row['serial_tokens_per_second']:>13.1f} tokens/s{row['serial_ratio']:>6.2f}x"
            f"{'   predicted for here' if row is here else ''}"
        )
    lost = [row["rtt_ms"] for row in report["distances"] if row["ratio"] < PAYS]
    if lost:
        yield f"from about {lost[0]:.0f} ms on this draft hardly pays"
