"""What the controllers lose to the best fixed look-ahead in hindsight, on recorded text.

    python -m draftwire.edge_client.regret TRACE [--temperature T] [--step MS] [--draft MS] [--delays MS,MS,...]

Regret is time lost: 2% means that the best fixed look-ahead, chosen after the fact for just this text and network,
would have taken 2% less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..protocol.errors import DraftwireError, InvalidParameterError
from .gamma.choice import ControllerName, make_controller
from .gamma.figures import Figures
from .gamma.fixed import FixedController
from .replay import Conditions, Playing, Replayed, replay
from .trace import Trace

__all__ = ["LOOK_AHEADS", "Text", "best_fixed", "main", "play", "text_of"]

LOOK_AHEADS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48)
_COMPARED: tuple[ControllerName, ...] = ("adaptive", "aimd", "pid", "bandit")


@dataclass(frozen=True, slots=True)
class Text:
    """A trace's texts of one temperature, one after the other: where the draft is right, and its confidence bytes."""

    right: tuple[bool, ...]
    confidences: tuple[int, ...]


def text_of(trace: Trace, temperature: float) -> Text:
    """All records of one temperature.

    Raises:
        InvalidParameterError: there are none.
    """
    records = [record for record in trace.records if record.temperature == temperature]
    if not records:
        known = sorted({record.temperature for record in trace.records})
        raise InvalidParameterError("temperature", f"{temperature:g} is not in the trace, which has {known}")
    return Text(
        tuple(hit for record in records for hit in record.right),
        tuple(byte for record in records for byte in record.confidences),
    )


def play(text: Text, name: ControllerName, playing: Playing) -> Replayed:
    """A fresh controller on this text."""
    controller = make_controller(name, look_ahead=None, figures=Figures())
    return replay(text.right, text.confidences, controller, playing)


def best_fixed(text: Text, playing: Playing, look_aheads: Sequence[int] = LOOK_AHEADS) -> tuple[float, int]:
    """Least seconds any fixed look-ahead takes, and which one it is."""
    return min(
        (replay(text.right, text.confidences, FixedController(look_ahead), playing).seconds, look_ahead)
        for look_ahead in look_aheads
    )


def _row(text: Text, conditions: Conditions) -> Mapping[str, str]:
    best, look_ahead = best_fixed(text, conditions)
    plain = conditions.step * len(text.right)
    row = {"best fixed": f"{plain / best:.3f}x ({look_ahead})"}
    for name in _COMPARED:
        seconds = play(text, name, conditions).seconds
        row[name] = f"{plain / seconds:.3f}x {100 * (seconds / best - 1):+.1f}%"
    return row


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m draftwire.edge_client.regret",
        description="What the controllers lose to the best fixed look-ahead in hindsight, on recorded text.",
    )
    parser.add_argument("trace", help="a trace file, as `draftwire bench --record` writes it")
    parser.add_argument("--temperature", type=float, default=0.0, help="which of its texts (default %(default)g)")
    parser.add_argument("--step", type=float, default=30.0, help="ms of a target step (default %(default)g)")
    parser.add_argument("--draft", type=float, default=7.0, help="ms to draft a token (default %(default)g)")
    parser.add_argument(
        "--slope", type=float, default=0.02, help="share of a step for each draft token in it (default %(default)g)"
    )
    parser.add_argument("--delays", default="5,20,55,111,150", help="one-way, ms (default %(default)s)")
    options = parser.parse_args(argv)
    try:
        delays = [float(delay) for delay in options.delays.split(",")]
        text = text_of(Trace.load(options.trace), options.temperature)
    except (ValueError, DraftwireError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for delay in delays:
        row = _row(
            text,
            Conditions(
                step=options.step / 1e3,
                draft=options.draft / 1e3,
                delay=delay / 1e3,
                per_token=options.slope * options.step / 1e3,
            ),
        )
        print(f"{delay:5g} ms one way | " + " | ".join(f"{name} {figure}" for name, figure in row.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
