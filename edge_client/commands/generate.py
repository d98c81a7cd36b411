"""``draftwire generate``: one answer to one prompt."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ...protocol.errors import DraftwireError, InvalidParameterError, VerifierError
from ..prompt import Prompt
from ..sync_client import EdgeClient, Stream
from .options import (
    add_connection_options,
    add_generation_options,
    add_loss_options,
    generation_options,
    make_client,
    read_input,
)
from .printing import print_events, summary

__all__ = ["register"]


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser("generate", help="answer one prompt")
    parser.add_argument("prompt", metavar="PROMPT", help="what to answer; - reads standard input")
    add_connection_options(parser, several=True)
    add_loss_options(parser)
    add_generation_options(parser)
    parser.add_argument("--system", help="system message before the prompt")
    parser.add_argument("--raw", action="store_true", help="continue the prompt as plain text, without a chat template")
    parser.add_argument("--show-guesses", action="store_true", help="underline what the device had guessed")
    parser.add_argument("--stats", action="store_true", help="print figures to standard error at the end")
    parser.add_argument("--json", action="store_true", help="print the result and its figures as JSON")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    prompt = _prompt(parsed)
    options = generation_options(parsed)
    with make_client(parsed) as client, client.stream(prompt, **options) as stream:
        if parsed.json:
            return _print_json(client, stream)
        finished = print_events(stream, show_guesses=parsed.show_guesses)
    if finished is None:
        raise VerifierError("the answer broke off")
    if parsed.stats:
        print(summary(finished.stats), file=sys.stderr)
    return 0


def _print_json(client: EdgeClient, stream: Stream) -> int:
    """The result as JSON; after a failure, what was committed before it, with the error."""
    failure: DraftwireError | None = None
    try:
        result = stream.get_final_result()
    except InvalidParameterError:
        raise
    except DraftwireError as error:
        result, failure = stream.partial_result(), error
    told = {"status": asdict(client.status), "error": None if failure is None else str(failure)}
    print(json.dumps({**result.to_dict(), **told}, indent=2))
    if failure is not None:
        raise failure
    return 0


def _prompt(parsed: argparse.Namespace) -> Prompt:
    text = read_input() if parsed.prompt == "-" else parsed.prompt
    if text.encode("utf-8", "replace").decode("utf-8") != text:  # undecodable bytes of the command line
        raise InvalidParameterError("PROMPT", "is not valid UTF-8")
    if not text:
        raise InvalidParameterError("PROMPT", "is empty; say what to answer")
    if parsed.raw:
        if parsed.system is not None:
            raise InvalidParameterError("--system", "needs a chat template, so it does not go with --raw")
        return str(text)
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return [*system, {"role": "user", "content": text}]
