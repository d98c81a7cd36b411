"""``draftwire bench``: cloud-only, serial, pipelined and Draftwire's own speculation side by side, over the grid asked
for.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import DraftwireError, InvalidParameterError
from ..bench.adverse import AdverseBenchmark, AdversePlan
from ..bench.adverse_outcome import LEAST_SPEED, MOST_FIRST
from ..bench.adverse_report import adverse_report
from ..bench.adversities import ADVERSITIES, choose_adversities
from ..bench.benchmark import Benchmark, Plan
from ..bench.chart import check_drawable, draw
from ..bench.conditions import Net, parse_numbers
from ..bench.modes import DEFAULT_MODES, parse_modes
from ..bench.outputs import check_outputs, write_output
from ..bench.processes import CoreSplit, Pair, demo_pair, running_verifier
from ..bench.prompts import PROMPTS, TASKS, choose_prompts
from ..bench.provenance import describe_draft, describe_target, describe_work, provenance
from ..bench.references import ReferenceOptions, run_references
from ..bench.report import report
from ..bench.subject import Subject
from ..bench.sweep import run_sweep, sweep_report
from ..wan_conditions import ABOUT_PIECES, parse_bandwidth, parse_jitter
from .bench_sweep import add_sweep_options, sweep_plan
from .options import api_key

__all__ = ["register"]

_FULL = {"rtt": "5,20,50,100,200", "temperature": "0,0.7", "prompts": None, "max_tokens": 64, "repeats": 1}
_QUICK = {"rtt": "20,100", "temperature": "0", "prompts": 2, "max_tokens": 40, "repeats": 1}
"""What is measured where nothing else is asked for: in about a quarter of an hour, and in about a minute."""

_ADVERSE_FULL = {"prompts": None, "max_tokens": 64, "repeats": 2, "first_tokens": 20}
_ADVERSE_QUICK = {"prompts": 2, "max_tokens": 32, "repeats": 1, "first_tokens": 10}
"""The same with ``--adverse``: in seven minutes, and in two."""

_NOT_ADVERSE = ("rtt", "jitter", "bandwidth", "temperature", "modes", "reference", "plot", "record")
"""Options of the grid; the adverse conditions are fixed."""

_ADVERSE = "\n".join(f"  {each.name:<10}  {each.about}" for each in ADVERSITIES)
_MODES = "\n".join(f"  {mode.name:<10}  {mode.about}" for mode in parse_modes([*DEFAULT_MODES, "cost"]))
_EPILOG = f"""modes:
{_MODES}
  aimd, pid, bandit, fixed:N
              other controllers of the look-ahead, for comparison

conditions of --adverse, where drafting has little to gain; it is to reach {LEAST_SPEED}x of cloud-only speed at the
least, with the first token after {MOST_FIRST}x of the time at the most; whether it does is told, and is no failure:
{_ADVERSE}

{ABOUT_PIECES}

Exit status: 0, 1 if a condition failed or a file could not be written, 2 for wrong usage, 130 when interrupted; what
was measured is told all the same."""


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure modes side by side over emulated networks",
        description="Answer the same prompts in several modes, side by side, over emulated networks, and compare.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_subject(parser)
    _add_grid(parser)
    add_sweep_options(parser)
    _add_outputs(parser)
    parser.set_defaults(run=_run)


def _add_subject(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to measure")
    group.add_argument("--target", metavar="MODEL", help="hub id, folder or GGUF file (default: the demo pair's)")
    group.add_argument("--draft", metavar="DIR", help="draft bundle (default: the demo pair's)")
    group.add_argument("--url", help="measure a running verifier instead of starting one")
    group.add_argument("--api-key-file", metavar="FILE", help="with --url: file with the API key")
    group.add_argument(
        "--dtype", choices=["bfloat16", "float32"], help="number format of the target (default bfloat16)"
    )
    group.add_argument("--threads", type=int, default=1, help="threads of the draft (default %(default)s)")


def _add_grid(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how much to measure")
    group.add_argument(
        "--quick", action="store_true", help="a minute's worth, or two of --adverse; what is given beside it counts"
    )
    group.add_argument(
        "--adverse",
        metavar="NAME,...",
        nargs="?",
        const="all",
        help="instead of the grid: draftwire under conditions that are bad for drafting; see below (default all)",
    )
    group.add_argument(
        "--rtt", metavar="MS,...", help=f"emulated round trips, added to the real one (default {_FULL['rtt']})"
    )
    group.add_argument(
        "--jitter",
        metavar="MS",
        help="extra delay of each piece of data, one way, ms: MOST or LEAST-MOST (default 0); see below",
    )
    group.add_argument(
        "--bandwidth", metavar="BITS", help="most bits a second, such as 2M; 100k/2M is up/down (default no limit)"
    )
    group.add_argument(
        "--temperature", metavar="T,...", help=f"sampling temperatures, 0 is greedy (default {_FULL['temperature']})"
    )
    group.add_argument(
        "--modes", metavar="MODE,...", help=f"modes to compare; see below (default {','.join(DEFAULT_MODES)})"
    )
    group.add_argument(
        "--tasks", metavar="TASK,...", default=",".join(TASKS), help="kinds of prompt (default %(default)s)"
    )
    group.add_argument(
        "--prompts", type=int, metavar="N", help=f"how many prompts, at most {len(PROMPTS)} (default: one of each task)"
    )
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help=f"most tokens of each answer (default {_FULL['max_tokens']})"
    )
    group.add_argument(
        "--repeats",
        type=int,
        metavar="N",
        help=f"answers to each prompt (default {_FULL['repeats']}; {_ADVERSE_FULL['repeats']} with --adverse)",
    )
    group.add_argument("--seed", type=int, default=7, help="seed of sampling and jitter (default %(default)s)")
    group.add_argument(
        "--reference",
        action="store_true",
        help="also time Hugging Face's generate and assisted generation on the pair, without a network",
    )


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to write beside the tables")
    group.add_argument("--json", metavar="FILE", help="every figure, and what it belongs to")
    group.add_argument("--plot", metavar="FILE.png", help="ratio to cloud-only over round trip; needs matplotlib")
    group.add_argument("--record", metavar="FILE.json", help="trace of where the draft is right")


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Results:
    """What there is to tell at the end."""

    provenance: dict[str, Any]
    references: list[dict[str, Any]] = field(default_factory=list)
    failure: str | None = None
    unwritten: list[str] = field(default_factory=list)
    interrupted: bool = False
    sweep: list[dict[str, Any]] | None = None


def _run(parsed: argparse.Namespace) -> int:
    sweep = sweep_plan(parsed, dtype=_dtype(parsed))
    plan = _plan(parsed) if parsed.adverse is None else _adverse_plan(parsed)
    _check_subject(parsed)
    _check_outputs(parsed)
    results = _Results(provenance(sys.argv[1:]))
    cores = CoreSplit()
    pair = _pair(parsed)
    with _verifier(parsed, pair, cores) as url:
        subject = Subject(url=url, draft=pair.draft, threads=parsed.threads, api_key=_key(parsed))
        benchmark = (
            Benchmark(plan, subject, say=_say) if isinstance(plan, Plan) else AdverseBenchmark(plan, subject, say=_say)
        )
        with _noting_interrupts(results):
            asyncio.run(benchmark.run())
    if parsed.reference and isinstance(benchmark, Benchmark) and not results.interrupted:
        with _noting_interrupts(results):
            _add_references(parsed, pair, cores, benchmark, results)
    if sweep is not None and isinstance(benchmark, Benchmark) and not (results.interrupted or benchmark.failed):
        with _noting_interrupts(results):
            _say("Sweeping ...")
            plan_here = dataclasses.replace(sweep, target=pair.target)
            results.sweep = run_sweep(plan_here, benchmark.trace, cores=cores)
    _tell(parsed, benchmark, results)
    if results.interrupted:
        return 130
    return 1 if results.failure is not None or results.unwritten or benchmark.failed else 0


@contextlib.contextmanager
def _noting_interrupts(results: _Results) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        results.interrupted = True


def _pair(parsed: argparse.Namespace) -> Pair:
    """The folders given, else the demo pair's; with ``--url`` the target's is not needed."""
    if parsed.draft is not None:
        return Pair(target=parsed.target or "", draft=parsed.draft)
    _say("Looking for the demo pair; the first time it is fetched and exported, which takes a minute or two ...")
    return demo_pair()


@contextlib.contextmanager
def _verifier(parsed: argparse.Namespace, pair: Pair, cores: CoreSplit) -> Iterator[str]:
    """The verifier's address; started here unless one was given."""
    if parsed.url is not None:
        yield parsed.url
        return
    _say(f"Starting the verifier on {pair.target} ...")
    with running_verifier(pair.target, dtype=_dtype(parsed), cores=cores) as port:
        yield f"ws://127.0.0.1:{port}"


def _add_references(
    parsed: argparse.Namespace, pair: Pair, cores: CoreSplit, benchmark: Benchmark, results: _Results
) -> None:
    plan = benchmark.plan
    _say("Timing Hugging Face's own generation ...")
    options = ReferenceOptions(
        target=pair.target, draft=pair.draft, dtype=_dtype(parsed), max_tokens=plan.max_tokens, seed=plan.seed
    )
    try:
        results.references = run_references(options, benchmark.prompt_ids, plan.temperatures, cores=cores)
    except DraftwireError as error:
        results.failure = f"the references failed: {error}"
        _say(results.failure)


def _say(text: str) -> None:
    """Tell what goes on. Where nobody hears it any more, the run goes on nevertheless."""
    if sys.stderr is None:  # closed before we began; print() would take standard output instead
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        with contextlib.suppress(
            OSError, ValueError
        ):  # what is still buffered goes nowhere, or leaving would fail on it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


# --- options ----------------------------------------------------------------------------------------------------------


def _plan(parsed: argparse.Namespace) -> Plan:
    chosen = _chosen(parsed, _QUICK if parsed.quick else _FULL)
    up, down = parse_bandwidth(parsed.bandwidth, field="--bandwidth") if parsed.bandwidth else (None, None)
    jitter = parse_jitter("0" if parsed.jitter is None else parsed.jitter, field="--jitter")
    return Plan(
        modes=parse_modes(parsed.modes.split(",") if parsed.modes is not None else DEFAULT_MODES),
        prompts=choose_prompts(tasks=parsed.tasks.split(","), count=chosen["prompts"]),
        nets=[
            Net(rtt_ms=rtt, jitter=jitter, bandwidth_up=up, bandwidth_down=down)
            for rtt in parse_numbers(chosen["rtt"], field="--rtt")
        ],
        temperatures=parse_numbers(chosen["temperature"], field="--temperature"),
        max_tokens=chosen["max_tokens"],
        repeats=chosen["repeats"],
        seed=parsed.seed,
    )


def _adverse_plan(parsed: argparse.Namespace) -> AdversePlan:
    for option in _NOT_ADVERSE:
        if getattr(parsed, option) not in (None, False):
            raise InvalidParameterError(f"--{option}", "does not go with --adverse, whose conditions are fixed")
    chosen = _chosen(parsed, _ADVERSE_QUICK if parsed.quick else _ADVERSE_FULL)
    return AdversePlan(
        adversities=choose_adversities(parsed.adverse.split(",")),
        prompts=choose_prompts(tasks=parsed.tasks.split(","), count=chosen["prompts"]),
        max_tokens=chosen["max_tokens"],
        repeats=chosen["repeats"],
        first_tokens=chosen["first_tokens"],
        seed=parsed.seed,
    )


def _chosen(parsed: argparse.Namespace, usual: dict[str, Any]) -> dict[str, Any]:
    """What is usual where nothing else was asked for; of this, what can be checked here is."""
    chosen = {name: value if (given := getattr(parsed, name, None)) is None else given for name, value in usual.items()}
    if chosen["max_tokens"] < 2:
        raise InvalidParameterError("--max-tokens", "must be at least 2, or there is no speed to compare")
    if chosen["repeats"] < 1:
        raise InvalidParameterError("--repeats", f"must be at least 1, not {chosen['repeats']}")
    if not 0 <= parsed.seed < 2**63:
        raise InvalidParameterError("--seed", f"must be from 0 to 2**63 - 1, not {parsed.seed}")
    return chosen


def _check_subject(parsed: argparse.Namespace) -> None:
    if parsed.threads < 1:
        raise InvalidParameterError("--threads", f"must be at least 1, not {parsed.threads}")
    if parsed.url is None:
        if (parsed.target is None) != (parsed.draft is None):
            raise InvalidParameterError(
                "--target", "and --draft belong together; give both, or neither for the demo pair"
            )
        if parsed.api_key_file is not None:
            raise InvalidParameterError("--api-key-file", "is for --url")
    elif parsed.target is not None or parsed.dtype is not None or parsed.reference:
        raise InvalidParameterError(
            "--url", "is of a verifier with its own target: no --target, --dtype or --reference"
        )


def _check_outputs(parsed: argparse.Namespace) -> None:
    """What would fail at the end had better fail at the beginning."""
    options = ("--json", "--record", "--plot")
    check_outputs({option: file for option in options if (file := getattr(parsed, option[2:])) is not None})
    if parsed.plot is not None:
        check_drawable()


def _dtype(parsed: argparse.Namespace) -> str:
    return parsed.dtype or "bfloat16"


def _key(parsed: argparse.Namespace) -> str | None:
    """A key is for the verifier it was made for, and not for one started here."""
    return api_key(parsed) if parsed.url is not None else None


# --- what is told -----------------------------------------------------------------------------------------------------


def _tell(parsed: argparse.Namespace, benchmark: Benchmark | AdverseBenchmark, results: _Results) -> None:
    """Files first: they can be read again, and standard output may be gone."""
    for option, content in _contents(parsed, benchmark, results):
        if (problem := write_output(option, getattr(parsed, option[2:]), content)) is not None:
            results.unwritten.append(problem)
            _say(f"draftwire: error: {problem}")
    if results.sweep is not None:
        tables = f"{_heading(parsed, benchmark)}\n\n{sweep_report(results.sweep)}"
    elif isinstance(benchmark, Benchmark):
        tables = report(benchmark.outcomes, results.references, heading=_heading(parsed, benchmark))
    else:
        tables = adverse_report(benchmark.outcomes, heading=_heading(parsed, benchmark))
    if tables:
        print(tables, flush=True)


def _contents(
    parsed: argparse.Namespace, benchmark: Benchmark | AdverseBenchmark, results: _Results
) -> Iterator[tuple[str, str | bytes]]:
    """What goes into the files asked for, by option; each is made when those before it are written."""
    if parsed.json is not None:
        yield "--json", json.dumps(_everything(parsed, benchmark, results), indent=2) + "\n"
    if not isinstance(benchmark, Benchmark):
        return
    if parsed.record is not None:
        yield "--record", benchmark.trace.to_json()
    if parsed.plot is not None and any(outcome.modes for outcome in benchmark.outcomes):
        yield "--plot", draw(benchmark.outcomes)


def _heading(parsed: argparse.Namespace, benchmark: Benchmark | AdverseBenchmark) -> str:
    """What was measured. Of a verifier that was not started here, no more is known than its target."""
    if benchmark.welcome is None:
        return ""
    plan, manifest = benchmark.plan, benchmark.manifest
    format_here = f" ({_dtype(parsed)}, 1 thread)" if parsed.url is None else ""
    threads = f"{parsed.threads} thread{'' if parsed.threads == 1 else 's'}"
    work = describe_work(plan.prompts, max_tokens=plan.max_tokens, repeats=plan.repeats)
    return (
        f"Target {benchmark.welcome.target}{format_here}, draft {manifest.name} ({manifest.quantization.scheme}, "
        f"{threads})\n{work}"
    )


def _everything(
    parsed: argparse.Namespace, benchmark: Benchmark | AdverseBenchmark, results: _Results
) -> dict[str, Any]:
    welcome = benchmark.welcome
    dtype = _dtype(parsed) if parsed.url is None else None
    return {
        "provenance": results.provenance,
        "target": describe_target(welcome, dtype=dtype) if welcome is not None else None,
        "draft": describe_draft(benchmark.manifest),
        "settings": _settings(benchmark.plan),
        "conditions": [outcome.to_dict() for outcome in benchmark.outcomes],
        "references": results.references,
        "sweep": results.sweep,
        "references_failure": results.failure,
        "interrupted": results.interrupted,
    }


def _settings(plan: Plan | AdversePlan) -> dict[str, Any]:
    settings = {
        "modes": {mode.name: [variant.options for variant in mode.variants] for mode in plan.modes},
        "prompts": {prompt.name: prompt.text for prompt in plan.prompts},
        "max_tokens": plan.max_tokens,
        "repeats": plan.repeats,
        "seed": plan.seed,
    }
    return settings if isinstance(plan, Plan) else {**settings, "first_tokens": plan.first_tokens}
