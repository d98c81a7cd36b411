"""The controllers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from .adaptive import AdaptiveController
from .aimd import AimdController
from .bandit import BanditController
from .controller import Controller
from .figures import Figures
from .fixed import FixedController, SerialController
from .pid import PidController

__all__ = ["CONTROLLERS", "ControllerName", "make_controller"]

ControllerName: TypeAlias = Literal["adaptive", "fixed", "aimd", "pid", "bandit", "serial"]

_Maker = Callable[[int, Figures, bool], Controller]

_CHOICES: Mapping[str, tuple[int, _Maker]] = {
    "adaptive": (48, lambda most, figures, saves: AdaptiveController(figures, most=most, saves_passes=saves)),
    "fixed": (12, lambda most, _figures, _saves: FixedController(most)),
    "aimd": (32, lambda most, _figures, _saves: AimdController(most)),
    "pid": (32, lambda most, _figures, _saves: PidController(most)),
    "bandit": (32, lambda most, _figures, _saves: BanditController(most)),
    "serial": (4, lambda most, _figures, _saves: SerialController(most)),
}
"""For each name: the look-ahead where none is given, and how it is made."""

CONTROLLERS = tuple(_CHOICES)


def make_controller(
    name: ControllerName, *, look_ahead: int | None, figures: Figures, saves_passes: bool = False
) -> Controller:
    """A controller for one stream.

    Args:
        name: one of :data:`CONTROLLERS`.
        look_ahead: what ``fixed`` and ``serial`` keep to, and the others never go above; None is the usual one.
        figures: what this device knows so far; ``adaptive`` starts from it and adds to it.
        saves_passes: the verifier waits for drafts (the cost policy).
    """
    usual, make = _CHOICES[name]
    return make(usual if look_ahead is None else look_ahead, figures, saves_passes)
