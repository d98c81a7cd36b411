"""``draftwire``: the device half on the command line."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from io import TextIOWrapper

from ..protocol.errors import DraftwireError, InvalidParameterError
from .commands import bench, chat, demo, doctor, generate, relay

__all__ = ["main"]

PROGRAM = "draftwire"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit status: 0, 1 for a failure, 2 for wrong usage; as shells have it, 130 when interrupted and 141
    when nobody reads the output any more.
    """
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Generate with a large model in the cloud, guessed ahead by a small one on this device.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {metadata.version('draftwire')}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (generate, chat, doctor, demo, bench, relay):
        command.register(commands)
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format=f"{PROGRAM}: %(message)s")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end an answer
    try:
        status = int(parsed.run(parsed))
        if sys.stdout is not None:  # closed before we began
            sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left, and wants no word about it
        _abandon_output()
        return 141
    except InvalidParameterError as error:
        return _fail(error, status=2)
    except DraftwireError as error:
        return _fail(error, status=1)
    except OSError as error:
        _abandon_output()
        return _fail(f"cannot write the output: {error.strerror or error}", status=1)


def _fail(problem: object, *, status: int) -> int:
    if sys.stderr is not None:  # closed before we began
        with contextlib.suppress(OSError, ValueError):  # what cannot be told still has its status
            print(f"{PROGRAM}: error: {problem}", file=sys.stderr)
    return status


def _abandon_output() -> None:
    """Let what is still buffered go nowhere, so that leaving the program does not fail on it again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
