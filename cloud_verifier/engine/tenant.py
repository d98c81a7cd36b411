"""Whose streams are whose: what the engine knows of a client, to be fair to all."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["ANYBODY", "Tenant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One party that the service is shared with, such as the holder of an API key. The same by name and address.

    Attributes:
        name: also in logs and metrics; never a key.
        address: where everybody has the same name, what tells them apart; empty otherwise.
        max_streams: open at once, over all its connections; None leaves it to the service's own limit.
    """

    name: str
    address: str = ""
    max_streams: int | None = field(default=None, compare=False)


ANYBODY = Tenant(name="anybody")
"""Everyone, where no keys are asked for, and nothing is known of where they are."""
