"""``draftwire chat``: a conversation; each turn sends only what is new."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ...protocol.errors import ConnectionLostError, DraftwireError, InvalidParameterError
from ..sync_client import EdgeClient
from .options import (
    add_connection_options,
    add_generation_options,
    add_loss_options,
    generation_options,
    make_client,
    read_line,
)
from .printing import print_events, summary

__all__ = ["register"]

_HELP = "Type a message. Ctrl-C stops an answer, /reset starts over, /exit (or the end of input) leaves."


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser("chat", help="talk, turn by turn")
    add_connection_options(parser, several=True)
    add_loss_options(parser)
    add_generation_options(parser)
    parser.add_argument("--system", help="system message of the conversation")
    parser.add_argument("--show-guesses", action="store_true", help="underline what the device had guessed")
    parser.add_argument("--stats", action="store_true", help="print figures to standard error after each turn")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    options = generation_options(parsed)
    start = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    messages = list(start)
    with make_client(parsed, retain_context=True) as client:
        if parsed.on_verifier_loss == "raise":
            client.ping()  # a verifier that is not there is told before the first message is typed
        print(_HELP, file=sys.stderr)
        while (line := _read()) is not None:
            if line in ("/exit", "/quit"):
                break
            if line == "/reset":
                messages = list(start)
            elif line.startswith("/"):
                print(f"draftwire: no command {line.split()[0]}. {_HELP}", file=sys.stderr)
            elif line:
                messages = _turn(client, [*messages, {"role": "user", "content": line}], parsed, options)
    return 0


def _read() -> str | None:
    if sys.stdin is not None and sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)
    return read_line()


def _turn(
    client: EdgeClient, messages: list[dict[str, str]], parsed: argparse.Namespace, options: dict[str, Any]
) -> list[dict[str, str]]:
    """One answer. A turn that fails is forgotten, and the conversation goes on from before it."""
    try:
        with client.stream(messages, **options) as stream:
            try:
                result = print_events(stream, show_guesses=parsed.show_guesses)
            except KeyboardInterrupt:  # ends this answer, not the conversation
                print(flush=True)
                result = stream.partial_result()
    except InvalidParameterError:
        raise
    except ConnectionLostError as error:
        print(f"draftwire: {error}", file=sys.stderr)
        return messages[:-1]
    except DraftwireError as error:
        print(f"draftwire: error: {error}", file=sys.stderr)
        return messages[:-1]
    if result is None or not result.text:
        return messages[:-1]
    if parsed.stats:
        print(summary(result.stats), file=sys.stderr)
    return [*messages, {"role": "assistant", "content": result.text}]
