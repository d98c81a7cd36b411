"""Whose streams are whose: what the engine knows of a client, to be fair to all."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ANYBODY", "Tenant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One party that the service is shared with, such as the holder of an API key. Compared by ``name`` alone.

    Attributes:
        name: also in logs and metrics; never a key.
        max_streams: open at once, over all its connections; None leaves it to the service's own limit.
    """

    name: str
    max_streams: int | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tenant) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


ANYBODY = Tenant(name="anybody")
"""Everyone, where no keys are asked for."""
