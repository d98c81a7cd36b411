"""``draftwire-export``: make a draft bundle, check one, or fetch the demo pair."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..protocol.errors import DraftwireError, InvalidParameterError
from .quantize import BLOCK_SIZES
from .source import one_line
from .terminal import Say, prepare_streams, say_nothing, say_stage, show, tell

__all__ = ["main"]

_PROGRAM = "draftwire-export"
_EPILOG = "Exit status: 0 done, 1 failed (one line says why), 2 wrong use."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    prepare_streams()
    try:
        options = _parser().parse_args(arguments)
    except SystemExit as stop:
        _flush_help(stop)
        raise
    if options.quiet:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when that library is imported
    try:
        status: int = options.run(options)
        return status
    except InvalidParameterError as error:
        return _fail(error, status=2, verbose=options.verbose)
    except DraftwireError as error:
        return _fail(error, status=1, verbose=options.verbose)
    except KeyboardInterrupt:
        tell(f"{_PROGRAM}: interrupted; nothing was written")
        return 130
    except OSError as error:
        return _fail(_disk_error(error), status=1, verbose=options.verbose)
    except Exception as error:  # whatever no door foresaw is still one line, never a traceback
        problem = f"{type(error).__name__}: {one_line(error)}; run again with --verbose to see where"
        return _fail(problem, status=1, verbose=options.verbose)


def _flush_help(stop: SystemExit) -> None:
    """Write out what the parser printed before it stopped; SystemExit 1 if that cannot be done."""
    try:
        show()
    except DraftwireError as error:
        raise SystemExit(_fail(error, status=1, verbose=False)) from stop


def _fail(problem: object, *, status: int, verbose: bool) -> int:
    if verbose:
        tell(traceback.format_exc().rstrip())
    tell(f"{_PROGRAM}: error: {problem}")
    return status


def _disk_error(error: OSError) -> str:
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or one_line(error)}{where}; check the folder's permissions and the free space"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__, epilog=_EPILOG)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_draft(commands)
    _add_check(commands)
    _add_demo_model(commands)
    return parser


def _common() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print the result as JSON on stdout")
    common.add_argument("--quiet", action="store_true", help="say nothing on stderr but errors")
    common.add_argument("--verbose", action="store_true", help="let the libraries talk, and show tracebacks")
    return common


def _add_draft(commands: Any) -> None:
    parser = commands.add_parser("draft", parents=[_common()], help="export a model as a draft bundle")
    parser.add_argument("model", metavar="MODEL", help="hub id, Hugging Face folder or GGUF file")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the bundle")
    parser.add_argument("--quantize", choices=("int4", "int8", "none"), default="int4", help="default: int4")
    parser.add_argument("--block-size", type=int, metavar="N", help=f"one of {', '.join(map(str, BLOCK_SIZES))}")
    parser.add_argument("--builder", choices=("auto", "fused", "optimum"), default="auto", help="default: auto")
    parser.add_argument("--threshold", type=float, metavar="F", help="least top-1 agreement with the model, 0 to 1")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the timed run (default: half the cores)")
    parser.add_argument("--compare", action="store_true", help="measure all three quantizations and recommend one")
    parser.add_argument("--keep-failed", action="store_true", help="keep a draft below the threshold as DIR.failed")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    parser.set_defaults(run=_draft)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", parents=[_common()], help="verify a bundle and run it")
    parser.add_argument("bundle", type=Path, metavar="DIR", help="folder of the bundle")
    parser.add_argument("--model", metavar="MODEL", help="compare with this model instead of the recorded reference")
    parser.add_argument("--threads", type=int, metavar="N", help="threads of the timed run (default: half the cores)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    parser.set_defaults(run=_check)


def _add_demo_model(commands: Any) -> None:
    parser = commands.add_parser("demo-model", parents=[_common()], help="fetch the demo pair into a cache")
    parser.add_argument("--cache", type=Path, metavar="DIR", help="default: $DRAFTWIRE_CACHE or the platform's cache")
    parser.set_defaults(run=_demo_model)


def _draft(options: argparse.Namespace) -> int:
    from .exporter import ExportOptions, export_draft
    from .report import as_json, comparison_table, report_table

    chosen = ExportOptions(
        quantize=options.quantize,
        block_size=options.block_size,
        builder=options.builder,
        threshold=options.threshold,
        threads=options.threads,
        trust_remote_code=options.trust_remote_code,
        compare=options.compare,
        keep_failed=options.keep_failed,
        verbose=options.verbose,
        say=_say(options),
    )
    out = options.out.expanduser().absolute()
    result = export_draft(options.model, out, chosen)
    if options.json:
        show(json.dumps(as_json(result.manifest, str(out), result.compared), indent=2))
        return 0
    show(f"draft bundle at {out}")
    show(report_table(result.manifest))
    if result.compared:
        show(comparison_table(result.compared))
    return 0


def _check(options: argparse.Namespace) -> int:
    from .bundle_check import check_bundle
    from .exporter import default_threads
    from .report import as_json, report_table

    if options.threads is not None and options.threads < 1:
        raise InvalidParameterError("--threads", "must be at least 1")
    result = check_bundle(
        options.bundle,
        model=options.model,
        threads=options.threads or default_threads(),
        trust_remote_code=options.trust_remote_code,
        verbose=options.verbose,
        say=_say(options),
    )
    if options.json:
        found = as_json(result.manifest, str(options.bundle))
        show(json.dumps(found | {"reproduced": result.reproduced, "against": result.against}, indent=2))
        return 0
    show(f"draft bundle at {options.bundle} is whole and works (compared with {result.against})")
    show(report_table(result.manifest))
    show(f"  {'recorded choices':<19}{result.reproduced:.3f} made again here")
    return 0


def _say(options: argparse.Namespace) -> Say:
    return say_nothing if options.quiet else say_stage


def _demo_model(options: argparse.Namespace) -> int:
    from .demo_model import draft_folder, target_folder

    target = target_folder(options.cache, quiet=options.quiet)
    draft = draft_folder(options.cache, quiet=options.quiet)
    if options.json:
        show(json.dumps({"target": str(target), "draft": str(draft)}, indent=2))
    else:
        show(f"target  {target}\ndraft   {draft}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
