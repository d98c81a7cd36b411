"""What the controllers lose to the best fixed look-ahead in hindsight, on recorded text.

    python -m draftwire.edge_client.regret TRACE [--temperature T] [--step MS] [--draft MS] [--slope S] [--delays MS,MS]

Regret is time lost: 2% means that the best fixed look-ahead, chosen after the fact for just this text and network,
would have taken 2% less.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..protocol.errors import InvalidParameterError
from .gamma.choice import ControllerName, make_controller
from .gamma.figures import Figures
from .gamma.fixed import FixedController
from .replay import Conditions, Playing, Replayed, replay
from .trace import Trace

__all__ = ["LOOK_AHEADS", "Text", "best_fixed", "main", "play", "text_of"]

LOOK_AHEADS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48)
_COMPARED: tuple[ControllerName, ...] = ("adaptive", "aimd", "pid", "bandit")

_MOST_MS = 10_000
_MOST_DELAY_MS = 5_000
"""The clock that frames carry goes round after 16 s."""

_MOST_SLOPE = 10


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


def _row(text: Text, conditions: Conditions) -> list[str]:
    """The best fixed look-ahead, then each controller: speed over cloud-only, and what that loses."""
    best, look_ahead = best_fixed(text, conditions)
    plain = conditions.step * len(text.right)
    row = [f"{plain / best:.3f}x ({look_ahead})"]
    for name in _COMPARED:
        seconds = play(text, name, conditions).seconds
        row.append(f"{plain / seconds:.3f}x {100 * (seconds / best - 1):+.1f}%")
    return row


# --- the command ------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table; returns the exit status: 2 for wrong usage."""
    options = _parser().parse_args(argv)
    try:
        settings = _settings(options)
        trace = Trace.load(options.trace)
        text = text_of(trace, options.temperature)
    except InvalidParameterError as error:
        print(f"draftwire: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(_header(options, trace, text)))
    print(f"{'one-way delay':>13}" + "".join(f"{name:>16}" for name in ("best fixed", *_COMPARED)), flush=True)
    for conditions in settings:
        cells = "".join(f"{cell:>16}" for cell in _row(text, conditions))
        print(f"{1e3 * conditions.delay:>10g} ms{cells}", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
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
    return parser


def _settings(options: argparse.Namespace) -> list[Conditions]:
    """One for each delay.

    Raises:
        InvalidParameterError: naming the option that cannot be.
    """
    for name, value in (("--step", options.step), ("--draft", options.draft)):
        if not 0 < value <= _MOST_MS:
            raise InvalidParameterError(name, f"must be ms above 0, {_MOST_MS} at most, not {value:g}")
    if not 0 <= options.slope <= _MOST_SLOPE:
        raise InvalidParameterError("--slope", f"must be from 0 to {_MOST_SLOPE}, not {options.slope:g}")
    return [
        Conditions(
            step=options.step / 1e3,
            draft=options.draft / 1e3,
            delay=delay / 1e3,
            per_token=options.slope * options.step / 1e3,
        )
        for delay in _delays(options.delays)
    ]


def _delays(given: str) -> list[float]:
    try:
        delays = [float(delay) for delay in given.split(",")]
    except ValueError:
        delays = []
    if not delays or not all(0 <= delay <= _MOST_DELAY_MS for delay in delays):
        raise InvalidParameterError("--delays", f"must be ms from 0 to {_MOST_DELAY_MS} such as 5,20,55, not {given!r}")
    return delays


def _header(options: argparse.Namespace, trace: Trace, text: Text) -> Iterator[str]:
    """What is played, and what the columns say."""
    texts = sum(record.temperature == options.temperature for record in trace.records)
    yield (
        f"trace     {trace.draft} for {trace.target}: {texts} texts at temperature {options.temperature:g}, "
        f"{len(text.right)} tokens in all"
    )
    yield (
        f"settings  a step {options.step:g} ms, a drafted token {options.draft:g} ms; each draft token in a step "
        f"makes it {100 * options.slope:g}% longer"
    )
    yield "columns   speed over cloud-only; best fixed: the look-ahead in brackets, the best one at that delay;"
    yield "          the controllers: how much more time each of them took than that"
    yield ""


if __name__ == "__main__":
    sys.exit(main())
