"""What an earlier stream left at the verifier: the next prompt that starts with it sends only what is new."""

from __future__ import annotations

from ..protocol.messages import Prefix
from .connection import VerifierConnection

__all__ = ["RetainedContext"]


class RetainedContext:
    """The last stream that ended well, on the connection that holds it."""

    def __init__(self) -> None:
        self._held: tuple[VerifierConnection, int, list[int]] | None = None

    def keep(self, connection: VerifierConnection, stream: int, sequence: list[int]) -> None:
        """The verifier was asked to keep this stream."""
        self._held = (connection, stream, sequence)

    def take(self, connection: VerifierConnection, prompt_ids: list[int]) -> Prefix | None:
        """The retained stream, as far as the prompt starts with it; at least one token must be new.

        It is used up, whatever comes of it.
        """
        held, self._held = self._held, None
        if held is None or held[0] is not connection:
            return None
        shared = 0
        for mine, theirs in zip(prompt_ids[:-1], held[2], strict=False):
            if mine != theirs:
                break
            shared += 1
        return Prefix(stream=held[1], length=shared) if shared else None
