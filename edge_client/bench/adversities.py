"""The conditions under which drafting has nothing to gain and must not lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError
from .conditions import Net
from .handicaps import Handicap

__all__ = ["ADVERSITIES", "Adversity", "choose_adversities"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversity:
    """One hard condition.

    Attributes:
        name: in the table and in JSON.
        about: one line.
        net: the network.
        handicap: what is wrong with the draft, if anything.
        busy: other programs spin on the device's cores.
        long: prompts are long, so that both ends have much to read before the first token.
    """

    name: str
    about: str
    net: Net
    handicap: Handicap | None = None
    busy: bool = False
    long: bool = False


_NEAR = Net(rtt_ms=20)

ADVERSITIES: tuple[Adversity, ...] = (
    Adversity(
        name="useless",
        about="the draft proposes random tokens and is sure of them",
        net=_NEAR,
        handicap=Handicap(useless=True),
    ),
    Adversity(
        name="slow", about="a drafted token takes two steps of the target", net=_NEAR, handicap=Handicap(steps=2.0)
    ),
    Adversity(name="far", about="a round trip of 300 ms", net=Net(rtt_ms=300)),
    Adversity(
        name="jitter",
        about="each piece of data takes 20 to 400 ms longer, each way",
        net=Net(rtt_ms=20, jitter=(0.020, 0.400)),
    ),
    Adversity(
        name="narrow",
        about="100 kbit/s each way",
        net=Net(rtt_ms=20, bandwidth_up=100e3, bandwidth_down=100e3),
    ),
    Adversity(name="busy", about="another program spins on each of the device's cores", net=_NEAR, busy=True),
    Adversity(name="long", about="a prompt of about 1500 tokens", net=_NEAR, long=True),
    Adversity(name="near", about="no network in between", net=Net(rtt_ms=0)),
)


def choose_adversities(names: Sequence[str]) -> list[Adversity]:
    """Those named, each once and in their own order; all of them for ``all``.

    Raises:
        InvalidParameterError: no such condition.
    """
    known = [adversity.name for adversity in ADVERSITIES]
    for name in names:
        if name not in [*known, "all"]:
            raise InvalidParameterError("--adverse", f"must be all, or of {', '.join(known)}, not {name!r}")
    return [adversity for adversity in ADVERSITIES if adversity.name in names or "all" in names]
