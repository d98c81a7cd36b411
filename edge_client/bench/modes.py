"""The ways to answer that the benchmark compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...protocol.errors import InvalidParameterError
from ..options import MAX_LOOK_AHEAD
from ..prediction import Discipline

__all__ = ["CLOUD_ONLY", "DEFAULT_MODES", "Mode", "Variant", "parse_modes"]

CLOUD_ONLY = "cloud_only"
"""The mode that all others are compared with."""

DEFAULT_MODES = ("cloud_only", "serial", "pipelined", "draftwire")
_SERIAL_LENGTHS = (3, 6)
_PIPELINED_AHEAD = 16
_CONTROLLERS = ("aimd", "pid", "bandit")


@dataclass(frozen=True, slots=True)
class Variant:
    """One setting of a mode: options of a generation, and what it is called in the mode's report."""

    label: str
    options: dict[str, Any] = field(hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to answer.

    Attributes:
        name: in tables, charts and JSON.
        variants: all are run; the fastest of them is what the mode is reported with.
        discipline: what predicts its speed; None for cloud-only.
        about: one line, for tables and help.
    """

    name: str
    variants: tuple[Variant, ...]
    discipline: Discipline | None
    about: str

    def serial_lengths(self, variant: Variant) -> list[int] | None:
        """Draft tokens in a round, where the mode is serial."""
        return [int(variant.options["look_ahead"])] if self.discipline == "serial" else None


def parse_modes(names: Sequence[str]) -> list[Mode]:
    """The modes named, cloud-only first, since all others are compared with it.

    Raises:
        InvalidParameterError: no such mode.
    """
    return [_mode(name) for name in dict.fromkeys([CLOUD_ONLY, *names])]


def _mode(name: str) -> Mode:
    """Look a mode up by its name."""
    if name == CLOUD_ONLY:
        return _single(name, None, "no draft; always run, as all others are compared with it", look_ahead=0)
    if name == "draftwire":
        return _single(
            name, "run_ahead", "the default of every client: an adaptive look-ahead, and the target never waits"
        )
    if name == "cost":
        return _single(
            name,
            "waiting",
            "an adaptive look-ahead, and the target waits for drafts, which saves target passes",
            policy="cost",
        )
    if name == "pipelined":
        about = f"draft without pause, {_PIPELINED_AHEAD} tokens ahead; the target waits for drafts"
        options = {"controller": "fixed", "look_ahead": _PIPELINED_AHEAD, "policy": "cost"}
        return _single(name, "waiting", about, **options)
    if name == "serial":
        return _serial()
    if name in _CONTROLLERS:
        return _single(
            name, "run_ahead", f"the {name} controller of the look-ahead; the target never waits", controller=name
        )
    kind, colon, number = name.partition(":")
    if kind == "fixed" and colon and number.isdecimal() and 1 <= int(number) <= MAX_LOOK_AHEAD:
        about = f"always {int(number)} tokens ahead; the target never waits"
        return _single(name, "run_ahead", about, controller="fixed", look_ahead=int(number))
    known = [*DEFAULT_MODES, "cost", *_CONTROLLERS, f"fixed:N (N from 1 to {MAX_LOOK_AHEAD})"]
    raise InvalidParameterError("--modes", f"must be of {', '.join(known)}, not {name!r}")


def _single(name: str, discipline: Discipline | None, about: str, **options: Any) -> Mode:
    return Mode(name=name, variants=(Variant("", options),), discipline=discipline, about=about)


def _serial() -> Mode:
    options = {"controller": "serial", "policy": "cost"}
    variants = tuple(Variant(f"K={length}", {**options, "look_ahead": length}) for length in _SERIAL_LENGTHS)
    lengths = " or ".join(map(str, _SERIAL_LENGTHS))
    about = f"draft {lengths} tokens, send, wait for the verdict; the faster of the two is shown"
    return Mode(name="serial", variants=variants, discipline="serial", about=about)
