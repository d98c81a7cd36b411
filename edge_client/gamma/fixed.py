"""Look-aheads that do not change: what continuous drafting and serial rounds look like without a controller."""

from __future__ import annotations

from .controller import Controller, Decision, Outlook

__all__ = ["FixedController", "LookAheadController", "SerialController"]


class LookAheadController(Controller):
    """Drafts up to a look-ahead and sends each token at once. ``look_ahead`` may change at any time."""

    def __init__(self, look_ahead: float) -> None:
        self.look_ahead = look_ahead

    def decide(self, outlook: Outlook) -> Decision:
        """See :class:`Controller`."""
        draft = outlook.room > 0 and len(outlook.ahead) < self.look_ahead
        return Decision(draft=draft, send=outlook.unsent > 0, continues=draft)


class FixedController(LookAheadController):
    """Always the same look-ahead."""


class SerialController(Controller):
    """Draft ``look_ahead`` tokens, send them in one frame, wait for the commit: rounds, as without a network.

    For comparison: each round waits for a round trip.
    """

    def __init__(self, look_ahead: int) -> None:
        self.look_ahead = look_ahead

    def decide(self, outlook: Outlook) -> Decision:
        """See :class:`Controller`."""
        in_flight = len(outlook.ahead) - outlook.unsent
        if in_flight:
            return Decision(draft=False, send=False)
        draft = outlook.room > 0 and outlook.unsent < self.look_ahead
        return Decision(draft=draft, send=not draft and outlook.unsent > 0, continues=False)
