"""How a generation looks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ..events import Degraded, Event, Finished, Reconnecting, Result, TextDelta
from ..stats import Stats

__all__ = ["print_events", "summary"]

_UNDERLINE, _PLAIN = "\x1b[4m", "\x1b[0m"


def print_events(events: Iterable[Event], *, show_guesses: bool) -> Result | None:
    """Print text as it comes; underline what the device had guessed, if asked and the output is a terminal."""
    underline = show_guesses and sys.stdout.isatty()
    result = None
    for event in events:
        match event:
            case TextDelta() if event.text:
                text = f"{_UNDERLINE}{event.text}{_PLAIN}" if underline and event.guessed else event.text
                print(text, end="", flush=True)
            case Degraded():
                print(f"draftwire: {event.mode}: {event.reason}", file=sys.stderr)
            case Reconnecting():
                print(f"draftwire: trying to go on: {event.reason}", file=sys.stderr)
            case Finished():
                result = event.result
    print(flush=True)
    return result


def summary(stats: Stats) -> str:
    """One line of figures."""
    parts = [f"{stats.committed} tokens", f"{stats.tokens_per_second:.1f} tokens/s"]
    if stats.unverified:
        parts[0] = f"{stats.committed + stats.unverified} tokens, {stats.unverified} of them the draft's alone"
    if stats.reconnects:
        parts.append(f"connected {1 + stats.reconnects} times")
    if stats.ttft_seconds is not None:
        parts.append(f"first token {1000 * stats.ttft_seconds:.0f} ms")
    if stats.median_rtt is not None:
        parts.append(f"round trip {1000 * stats.median_rtt:.0f} ms")
    if stats.draft_steps:
        parts.append(f"acceptance {stats.acceptance_rate:.2f}")
        parts.append(f"{stats.target_passes_per_token:.2f} target passes a token (1 without a draft)")
    parts.append(f"{stats.bytes_per_token:.0f} bytes a token")
    return ", ".join(parts)
