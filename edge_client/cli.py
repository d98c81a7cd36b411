"""``draftwire``: the device half on the command line."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence

from ..protocol.errors import DraftwireError, InvalidParameterError
from .commands import chat, demo, doctor, generate

__all__ = ["main"]

PROGRAM = "draftwire"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Returns the exit status: 0, 1 for a failure, 2 for wrong usage, 130 when interrupted."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Generate with a large model in the cloud, guessed ahead by a small one on this device.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (generate, chat, doctor, demo):
        command.register(commands)
    parsed = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format=f"{PROGRAM}: %(message)s")
    try:
        return int(parsed.run(parsed))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has left
        sys.stderr.close()
        return 1
    except InvalidParameterError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except DraftwireError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
