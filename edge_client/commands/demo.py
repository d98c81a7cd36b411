"""``draftwire demo``: both ends on this machine, the demo pair, and an emulated network between them."""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import InvalidParameterError
from ..bench.processes import CoreSplit, demo_pair, running_verifier
from ..client import AsyncEdgeClient
from ..events import Result, TextDelta
from ..stats import Stats
from ..wan_relay import WanRelay

__all__ = ["register"]

_PROMPTS = (
    "Write a Python function that returns the n-th Fibonacci number, then explain it step by step.",
    "Why is the sky blue? Explain it to a child.",
    "Summarize: The Romans built roads from stone and gravel so that armies could move fast. Traders soon used them "
    "too, and towns grew where they crossed. Many of today's roads still follow them.",
    "List ten things to pack for a week in the mountains, each with a short reason.",
    "Tell a short story about a robot who learns to paint.",
)
"""Code, chat, summary, list and story: how often the device guesses right depends on the task."""
_UNDERLINE, _PLAIN = "\x1b[4m", "\x1b[0m"


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "demo", help="run verifier and device here, with an emulated network between them, and compare"
    )
    parser.add_argument("--prompt", help="what to answer (default: a programming task)")
    parser.add_argument(
        "--prompts",
        type=int,
        default=1,
        help=f"how many prompts to answer, at most {len(_PROMPTS)} (default %(default)s)",
    )
    parser.add_argument(
        "--rtt", type=float, default=50.0, metavar="MS", help="emulated round trip (default %(default)g)"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=100, metavar="N", help="most tokens of each answer (default %(default)s)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--look-ahead", type=int, metavar="N", help="most draft tokens ahead (default: it adapts)")
    parser.add_argument(
        "--dtype",
        choices=["bfloat16", "float32"],
        default="bfloat16",
        help="number format of the target (default %(default)s)",
    )
    parser.add_argument(
        "--seed", type=int, default=7, help="seed of sampling, which is above temperature 0 (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if not 0 <= parsed.rtt <= 10_000:
        raise InvalidParameterError("--rtt", f"must be from 0 to 10000 ms, not {parsed.rtt:g}")
    if parsed.max_tokens < 2:
        raise InvalidParameterError("--max-tokens", "must be at least 2, or there is no speed to compare")
    _say(
        parsed, "Looking for the demo pair; the first time it is fetched and exported, which takes a minute or two ..."
    )
    pair = demo_pair()
    _say(parsed, f"Starting the verifier on {pair.target} ...")
    with running_verifier(pair.target, dtype=parsed.dtype, cores=CoreSplit()) as port:
        figures = asyncio.run(_compare(parsed, port, pair.draft))
    if parsed.json:
        print(json.dumps(figures, indent=2))
    return 0


def _say(parsed: argparse.Namespace, text: str) -> None:
    print(text, file=sys.stderr if parsed.json else sys.stdout, flush=True)


# --- the comparison -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to answer."""

    name: str
    title: str
    look_ahead: int | None


async def _compare(parsed: argparse.Namespace, port: int, draft: str) -> dict[str, Any]:
    modes = [
        Mode("cloud_only", "Cloud-only", 0),
        Mode("with_draft", "With the draft", parsed.look_ahead),
    ]
    prompts = [parsed.prompt] if parsed.prompt is not None else _PROMPTS[: parsed.prompts]
    results: dict[str, list[Result]] = {mode.name: [] for mode in modes}
    async with (
        WanRelay("127.0.0.1", port, delay=parsed.rtt / 2000) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=draft, require_draft=True) as client,
    ):
        await client.wait_for_draft()
        rtt = await client.ping()
        await _answer(client, parsed, modes[0], prompts[0], max_tokens=4)  # the first pass of a model is slower
        for prompt in prompts:
            for mode in modes:
                if not parsed.json:
                    print(f"\n{mode.title}, {1000 * rtt:.0f} ms round trip:\n")
                results[mode.name].append(
                    await _answer(client, parsed, mode, prompt, max_tokens=parsed.max_tokens, show=not parsed.json)
                )
    figures = _figures(results, rtt)
    if not parsed.json:
        _print_table(modes, figures)
    return figures


async def _answer(
    client: AsyncEdgeClient,
    parsed: argparse.Namespace,
    mode: Mode,
    prompt: str,
    *,
    max_tokens: int,
    show: bool = False,
) -> Result:
    underline = sys.stdout.isatty()
    async with client.stream(
        [{"role": "user", "content": prompt}],
        max_tokens=max_tokens,
        temperature=parsed.temperature,
        seed=parsed.seed,
        look_ahead=mode.look_ahead,
    ) as stream:
        async for event in stream:
            if show and isinstance(event, TextDelta) and event.text:
                marked = event.guessed and event.text.strip()
                before, after = (_UNDERLINE, _PLAIN) if underline else ("[", "]")
                print(f"{before}{event.text}{after}" if marked else event.text, end="", flush=True)
        if show:
            print()
        return await stream.get_final_result()


def _figures(results: dict[str, list[Result]], rtt: float) -> dict[str, Any]:
    plain, drafted = results["cloud_only"], results["with_draft"]
    ratios = [
        with_draft.stats.tokens_per_second / alone.stats.tokens_per_second
        for alone, with_draft in zip(plain, drafted, strict=True)
    ]
    return {
        **{name: _totals([result.stats for result in answers]) for name, answers in results.items()},
        "rtt_ms": 1000 * rtt,
        "ratio": statistics.geometric_mean(ratios),
        "ratios": ratios,
        "draft_ms_per_token": statistics.median(result.stats.draft_ms_per_token for result in drafted),
        "same_text": [alone.token_ids for alone in plain] == [with_draft.token_ids for with_draft in drafted],
    }


def _totals(answers: list[Stats]) -> dict[str, Any]:
    """Sums over the answers, and what follows from the sums."""
    whole = Stats(
        committed=sum(stats.committed for stats in answers),
        drafted=sum(stats.drafted for stats in answers),
        accepted=sum(stats.accepted for stats in answers),
        target_passes=sum(stats.target_passes for stats in answers),
        bytes_up=sum(stats.bytes_up for stats in answers),
        bytes_down=sum(stats.bytes_down for stats in answers),
    )
    return {
        "tokens": whole.committed,
        "tokens_per_second": statistics.harmonic_mean(stats.tokens_per_second for stats in answers),
        "ttft_ms": 1000 * statistics.median(stats.ttft_seconds or 0.0 for stats in answers),
        "acceptance_rate": whole.acceptance_rate if whole.drafted else None,
        "target_passes_per_token": whole.target_passes_per_token,
        "bytes_per_token": whole.bytes_per_token,
    }


def _print_table(modes: list[Mode], figures: dict[str, Any]) -> None:
    mark = "Underlined" if sys.stdout.isatty() else "In brackets"
    print(f"\n{mark}: what the device had guessed.\n")
    print(f"{'':16}{'tokens/s':>10}{'acceptance':>12}{'target passes/token':>21}{'bytes/token':>13}")
    for mode in modes:
        row = figures[mode.name]
        acceptance = "-" if row["acceptance_rate"] is None else f"{row['acceptance_rate']:.2f}"
        print(
            f"{mode.title:16}{row['tokens_per_second']:10.1f}{acceptance:>12}"
            f"{row['target_passes_per_token']:21.2f}{row['bytes_per_token']:13.0f}"
        )
    spread = f" ({min(figures['ratios']):.2f} to {max(figures['ratios']):.2f})" if len(figures["ratios"]) > 1 else ""
    print(
        f"\nWith the draft: {figures['ratio']:.2f} times{spread} the speed of cloud-only at {figures['rtt_ms']:.0f} ms."
    )
    if figures["same_text"]:
        print("The answers are the same, token for token.")
    else:
        print(
            "In bfloat16 the target's best tokens often tie, and either may be taken: the answers part there. "
            "With --dtype float32 they are the same, token for token."
        )
