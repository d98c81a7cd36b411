"""What becomes of a stream's drafts."""

from __future__ import annotations

from enum import Enum

__all__ = ["Speculation"]


class Speculation(Enum):
    """Whether drafts may speed a stream up. The text is the target's in any case.

    OFF: drafts are read and dropped. SHADOW: drafts are verified and counted, and the answer advances by one token a
    step as if there were none, so that what they would bring is known before anybody relies on it.
    """

    ON = "on"
    OFF = "off"
    SHADOW = "shadow"
