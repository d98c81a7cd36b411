"""``draftwire generate``: one answer to one prompt."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ...protocol.errors import InvalidParameterError, VerifierError
from ..events import Result
from ..prompt import Prompt
from ..sync_client import EdgeClient
from .options import add_connection_options, add_generation_options, generation_options, make_client
from .printing import print_events, summary

__all__ = ["register"]


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser("generate", help="answer one prompt")
    parser.add_argument("prompt", metavar="PROMPT", help="what to answer; - reads standard input")
    add_connection_options(parser)
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
    with make_client(parsed) as client:
        if parsed.json:
            result = client.generate(prompt, **options)
            print(json.dumps(_report(client, result), indent=2))
            return 0
        with client.stream(prompt, **options) as stream:
            finished = print_events(stream, show_guesses=parsed.show_guesses)
    if finished is None:
        raise VerifierError("the answer broke off")
    if parsed.stats:
        print(summary(finished.stats), file=sys.stderr)
    return 0


def _prompt(parsed: argparse.Namespace) -> Prompt:
    text = sys.stdin.read() if parsed.prompt == "-" else parsed.prompt
    if not text:
        raise InvalidParameterError("PROMPT", "is empty; say what to answer")
    if parsed.raw:
        if parsed.system is not None:
            raise InvalidParameterError("--system", "needs a chat template, so it does not go with --raw")
        return str(text)
    system = [{"role": "system", "content": parsed.system}] if parsed.system is not None else []
    return [*system, {"role": "user", "content": text}]


def _report(client: EdgeClient, result: Result) -> dict[str, object]:
    status = client.status
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "seed": result.seed,
        "prompt_tokens": result.prompt_tokens,
        "status": asdict(status),
        "stats": result.stats.to_dict(),
    }
