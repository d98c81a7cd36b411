"""``draftwire-verifier``: serve a target, or show what one is."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata

from ..protocol.errors import DraftwireError, InvalidParameterError
from .operations.logs import logging_as_asked
from .operations.options import add_log_options
from .service.door_commands import add_door_commands
from .serving import add_model_options, add_serve, load_target

__all__ = ["main"]

PROGRAM = "draftwire-verifier"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 for a failure, 2 for wrong usage."""
    parsed = _parser().parse_args(arguments)
    for library in ("huggingface_hub", "transformers"):  # their retries and notes are no news to an operator
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        with logging_as_asked(parsed) as log:
            parsed.log = log
            status = int(parsed.run(parsed))
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left, and wants no word about it
        _abandon_output()
        return 1
    except InvalidParameterError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except DraftwireError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        _abandon_output()
        print(f"{PROGRAM}: error: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return 1


def _abandon_output() -> None:
    """Let what is still buffered go nowhere, so that leaving the program does not fail on it again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="The cloud half of Draftwire: verifies draft tokens.")
    parser.add_argument("--log-level", choices=["debug", "info", "warning", "error"], default="info")
    add_log_options(parser)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {metadata.version('draftwire')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    add_serve(commands)
    add_door_commands(commands)

    info = commands.add_parser("info", help="show versions and devices, or what a target is")
    info.add_argument("model", metavar="MODEL", nargs="?", help="hub id, folder or GGUF file of a target")
    add_model_options(info)
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    return parser


def _info(parsed: argparse.Namespace) -> int:
    report: dict[str, object] = {"draftwire": metadata.version("draftwire"), "python": platform.python_version()}
    report.update({name: metadata.version(name) for name in ("torch", "transformers", "aiohttp")})
    report["devices"] = _devices()
    if parsed.model is not None:
        info = load_target(parsed).info
        report.update(
            target=info.name,
            vocabulary_size=info.vocabulary_size,
            max_context=info.max_context,
            eos_ids=list(info.eos_ids),
            fingerprint=info.fingerprint.hex(),
            dtype=info.dtype,
            device=info.device,
        )
    if parsed.json:
        print(json.dumps(report, indent=2))
    else:
        for name, value in report.items():
            print(f"{name:>16}  {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return 0


def _devices() -> list[str]:
    import torch  # the model has loaded it already, or nothing else here needs it

    return ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]


if __name__ == "__main__":
    sys.exit(main())
