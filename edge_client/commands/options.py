"""Command-line options that several commands share, and the client they describe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from ...protocol.errors import InvalidParameterError
from ..client_settings import LOSS_POLICIES
from ..gamma.choice import CONTROLLERS
from ..sync_client import EdgeClient

__all__ = [
    "add_connection_options",
    "add_generation_options",
    "add_loss_options",
    "api_key",
    "generation_options",
    "make_client",
    "read_input",
    "read_line",
]

DEFAULT_URL = "ws://127.0.0.1:8300"

_SAMPLING: Mapping[str, tuple[type, str]] = {
    "temperature": (float, "0 is greedy (default)"),
    "top_k": (int, "keep the k best tokens; 0 is off (default)"),
    "top_p": (float, "keep the nucleus of this probability; 1 is off (default)"),
    "min_p": (float, "keep tokens at least this times as probable as the best; 0 is off (default)"),
    "repetition_penalty": (float, "above 1 discourages tokens seen in prompt or answer; 1 is off (default)"),
    "presence_penalty": (float, "-2 to 2, subtracted once from tokens of the answer"),
    "frequency_penalty": (float, "-2 to 2, subtracted for each time a token is in the answer"),
    "max_tokens": (int, "most tokens of the answer (default 512, or what the context leaves)"),
    "seed": (int, "0 to 2**64 - 1; in coupled mode, same seed, same text (default random)"),
    "look_ahead": (int, "most draft tokens beyond the committed ones; 0 is cloud-only (default by controller)"),
}


def add_connection_options(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """``--url``, ``--draft`` and what goes with them; with ``several``, ``--url`` may be repeated."""
    if several:
        text = f"a verifier (default {DEFAULT_URL}); repeated, the next takes over where one is lost"
        parser.add_argument("--url", action="append", help=text)
    else:
        parser.add_argument("--url", default=DEFAULT_URL, help="the verifier (default %(default)s)")
    parser.add_argument("--draft", metavar="DIR", help="draft bundle; without one the answer is cloud-only")
    parser.add_argument("--threads", type=int, help="cores the draft may use (default half of them)")
    parser.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="file with the API key (or set DRAFTWIRE_API_KEY); never on the command "
        "line, where other users can read it",
    )


def add_loss_options(parser: argparse.ArgumentParser) -> None:
    """What to do when the verifier is lost."""
    parser.add_argument(
        "--reconnect-seconds",
        type=float,
        metavar="S",
        help="how long to search for a lost verifier and wait for a busy one (default 30, and one look at first); "
        "0 ends the answer with its connection",
    )
    parser.add_argument(
        "--on-verifier-loss",
        choices=LOSS_POLICIES,
        default=LOSS_POLICIES[0],
        help="when none is found: fail (default), or go on with the draft alone, whose text is not the target's",
    )


def add_generation_options(parser: argparse.ArgumentParser) -> None:
    """Sampling and length."""
    for name, (kind, text) in _SAMPLING.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help=text)
    parser.add_argument(
        "--mode", choices=["coupled", "rejection"], help="acceptance rule above temperature 0 (default coupled)"
    )
    parser.add_argument("--controller", choices=CONTROLLERS, help="how far ahead to draft (default adaptive)")
    parser.add_argument("--policy", choices=["latency", "cost"], help="what the verifier should save (default latency)")
    parser.add_argument("--ignore-eos", action="store_true", default=None, help="go on after an end-of-sequence token")


def generation_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """The options given, by the names that the SDK knows them by."""
    names = [*_SAMPLING, "mode", "controller", "policy", "ignore_eos"]
    return {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}


def make_client(parsed: argparse.Namespace, **options: Any) -> EdgeClient:
    """The client that the connection and loss options describe."""
    return EdgeClient(
        parsed.url or DEFAULT_URL,
        draft=parsed.draft,
        threads=parsed.threads,
        api_key=api_key(parsed),
        reconnect_seconds=parsed.reconnect_seconds,
        on_verifier_loss=parsed.on_verifier_loss,
        **options,
    )


def api_key(parsed: argparse.Namespace) -> str | None:
    """The API key from the file given, else from the environment."""
    if parsed.api_key_file is None:
        return os.environ.get("DRAFTWIRE_API_KEY")
    try:
        with open(parsed.api_key_file, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeError) as error:
        raise InvalidParameterError("--api-key-file", f"cannot be read: {error}") from error


def read_input() -> str:
    """All of standard input; nothing where it is closed."""
    try:
        return sys.stdin.read() if sys.stdin is not None else ""
    except UnicodeError as error:
        raise InvalidParameterError("standard input", f"is not text in this terminal's encoding: {error}") from error


def read_line() -> str | None:
    """One line of standard input without its end; None at the end of input, or where it is closed."""
    try:
        line = sys.stdin.readline() if sys.stdin is not None else ""
    except UnicodeError as error:
        raise InvalidParameterError("standard input", f"is not text in this terminal's encoding: {error}") from error
    return line.strip() if line else None
