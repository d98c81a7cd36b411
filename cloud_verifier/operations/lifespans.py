"""When things happened to each stream that is open."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.stream import Key, VerifierStream

__all__ = ["Life", "Lifespans"]


@dataclass(slots=True)
class Life:
    """Of one stream, in monotonic seconds: asked for, given a place, first and last commit."""

    opened_at: float
    placed_at: float
    first_at: float | None = None
    last_at: float | None = None

    def commit(self, at: float) -> float | None:
        """A commit. Returns the seconds since the one before; None for the first."""
        before, self.last_at = self.last_at, at
        if before is None:
            self.first_at = at
            return None
        return at - before

    @property
    def first_token_seconds(self) -> float | None:
        """From being asked for to the first commit."""
        return None if self.first_at is None else self.first_at - self.opened_at

    @property
    def decode_seconds(self) -> float:
        """From the first commit to the last."""
        return 0.0 if self.first_at is None or self.last_at is None else self.last_at - self.first_at


class Lifespans:
    """Lives of the streams that are open."""

    def __init__(self) -> None:
        self._lives: dict[Key, Life] = {}

    def __len__(self) -> int:
        return len(self._lives)

    def begin(self, stream: VerifierStream, *, waited: float) -> None:
        """A stream has got a place."""
        self._lives[stream.key] = Life(stream.opened_at, stream.opened_at + waited)

    def of(self, stream: VerifierStream) -> Life:
        """Its life; one that nobody saw begin began when it was asked for."""
        life = self._lives.get(stream.key)
        if life is None:
            life = self._lives[stream.key] = Life(stream.opened_at, stream.opened_at)
        return life

    def end(self, stream: VerifierStream) -> Life:
        """Its life, which is over."""
        life = self.of(stream)
        del self._lives[stream.key]
        return life
