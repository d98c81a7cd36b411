"""``draftwire doctor``: is everything in order between this device and the verifier, and how fast is each part?"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
from importlib import metadata
from typing import Any

from ...protocol.errors import DraftwireError, InvalidParameterError
from ...protocol.sampling import SamplingParams
from ..client import AsyncEdgeClient
from ..device import Device
from ..prompt import Prompt
from ..proposer import Proposer
from .options import add_connection_options, api_key

__all__ = ["register"]

_PINGS = 5
_TOKENS = 24
_PROMPTS: tuple[Prompt, ...] = (
    [{"role": "user", "content": "List the months of the year, one a line."}],
    "The months of the year are January, February,",
    [0],
)
"""From the best to what any vocabulary has: not every model has a chat template, or a token for every letter."""


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="check versions, vocabulary, round trip and draft speed"
    )
    add_connection_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    report: dict[str, Any] = {"versions": _versions(), "problems": []}
    asyncio.run(_examine(parsed, report))
    print(json.dumps(report, indent=2) if parsed.json else _text(report))
    return 1 if report["problems"] else 0


def _versions() -> dict[str, str]:
    names = ("draftwire", "onnxruntime", "tokenizers", "websockets", "numpy")
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in names}}


async def _examine(parsed: argparse.Namespace, report: dict[str, Any]) -> None:
    """Go through everything in order; what cannot be reached any more is a problem, not a failure of the doctor."""
    async with AsyncEdgeClient(
        parsed.url, draft=parsed.draft, threads=parsed.threads, api_key=api_key(parsed)
    ) as client:
        try:
            await _meet(client, parsed.url, report)
            status = await client.wait_for_draft()
            _describe_draft(client, report)
            if parsed.draft is not None and status.mode != "drafting":
                report["problems"].append(status.reason or "the draft is not in use")
            await _measure(client, report, drafting=status.mode == "drafting")
        except InvalidParameterError:
            raise
        except DraftwireError as error:
            report["problems"].append(str(error))


async def _meet(client: AsyncEdgeClient, url: str, report: dict[str, Any]) -> None:
    welcome = await client.connect()
    report["verifier"] = {
        "url": url,
        "target": welcome.target,
        "protocol": welcome.version,
        "vocabulary_size": welcome.vocabulary_size,
        "fingerprint": welcome.fingerprint.hex(),
        "max_context": welcome.limits.max_context,
        "max_streams": welcome.limits.max_streams,
    }
    report["rtt_ms"] = 1000 * statistics.median([await client.ping() for _ in range(_PINGS)])


def _describe_draft(client: AsyncEdgeClient, report: dict[str, Any]) -> None:
    if client.device is not None:
        manifest = client.device.bundle.manifest
        report["draft"] = {
            "name": manifest.name,
            "quantization": manifest.quantization.scheme,
            "fingerprint": manifest.vocabulary.fingerprint,
            "matches": manifest.vocabulary.fingerprint == report["verifier"]["fingerprint"],
        }


async def _measure(client: AsyncEdgeClient, report: dict[str, Any], *, drafting: bool) -> None:
    """A short answer with and without the draft, for the times of each part."""
    prompt = await _prompt(client)
    plain = await client.generate(prompt, max_tokens=_TOKENS, look_ahead=0, ignore_eos=True)
    report["target_ms_per_step"] = 1000 * plain.stats.target_seconds / max(1, plain.stats.rounds)
    report["cloud_only_tokens_per_second"] = plain.stats.tokens_per_second
    if drafting and client.device is not None:
        drafted = await client.generate(prompt, max_tokens=_TOKENS, ignore_eos=True)
        report["draft_ms_per_token"] = await _draft_ms(client.device)
        report["drafting_tokens_per_second"] = drafted.stats.tokens_per_second
        report["acceptance_rate"] = drafted.stats.acceptance_rate


async def _draft_ms(device: Device) -> float:
    """Median milliseconds of a drafting step, with the device to itself."""
    proposer, tokens, times = Proposer(SamplingParams(), seed=0, prompt_length=1), [0], []
    async with device.lease() as drafter:
        for _ in range(_TOKENS):
            drafted = await device.draft(drafter, tokens, proposer)
            tokens.append(drafted.proposal.token)
            times.append(1000 * drafted.seconds)
    return statistics.median(times)


async def _prompt(client: AsyncEdgeClient) -> Prompt:
    """The first prompt that this model takes."""
    for prompt in _PROMPTS[:-1]:
        try:
            await client.generate(prompt, max_tokens=1, look_ahead=0)
        except InvalidParameterError:
            continue
        return prompt
    return _PROMPTS[-1]


def _text(report: dict[str, Any]) -> str:
    lines = ["versions     " + ", ".join(f"{name} {version}" for name, version in report["versions"].items())]
    if verifier := report.get("verifier"):
        lines.append(f"verifier     {verifier['target']} at {verifier['url']}, protocol {verifier['protocol']}")
        lines.append(f"vocabulary   {verifier['vocabulary_size']} ids, fingerprint {verifier['fingerprint']}")
    if draft := report.get("draft"):
        verdict = "the same vocabulary" if draft["matches"] else f"ANOTHER vocabulary, {draft['fingerprint']}"
        lines.append(f"draft        {draft['name']} ({draft['quantization']}), {verdict}")
    figures = {
        "rtt_ms": "round trip   {:.1f} ms",
        "target_ms_per_step": "target       {:.1f} ms a step",
        "draft_ms_per_token": "draft        {:.1f} ms a token",
        "acceptance_rate": "acceptance   {:.2f}",
        "cloud_only_tokens_per_second": "cloud-only   {:.1f} tokens/s",
        "drafting_tokens_per_second": "drafting     {:.1f} tokens/s",
    }
    lines += [template.format(report[name]) for name, template in figures.items() if name in report]
    lines += [f"problem      {problem}" for problem in report["problems"]]
    if not report["problems"]:
        lines.append("all is in order")
    return "\n".join(lines)
