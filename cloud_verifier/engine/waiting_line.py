"""The streams that wait for a place: a short, bounded line in which nobody can crowd the others out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from .stream import Party, VerifierStream

__all__ = ["WaitingLine"]


class WaitingLine:
    """Who is next, who has waited too long, and who has to go when the line is full.

    A place goes to the tenant that has the fewest; there to the address, and to the owner, that has the fewest; of
    those, first to a stream that had a place already and gave its memory up, then to who came first. A stream that had
    a place is never sent away.

    One for which there is no memory yet may be passed by others behind it, which need less; but not for ever. Who had a
    place, or has waited for half as long as it will, is waited for: nobody passes it.

    Args:
        most: streams that wait at most, those that had a place already not counted.
        patience: seconds that a stream waits at most.
    """

    def __init__(self, *, most: int, patience: float) -> None:
        self.most = most
        self.patience = patience
        self._streams: list[VerifierStream] = []

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[VerifierStream]:
        return iter(self._streams)

    def join(self, stream: VerifierStream) -> None:
        """Add a stream; see :meth:`excess`."""
        self._streams.append(stream)

    def excess(self) -> VerifierStream | None:
        """Who has to go because the line is too long: the newest of who has most in it, by tenant, address, owner."""
        new = [stream for stream in self._streams if not stream.seated_before]
        if len(new) <= self.most:
            return None
        waiting = Counter[Party](party for stream in new for party in stream.parties)
        return max(reversed(new), key=lambda stream: [waiting[party] for party in stream.parties])

    def leave(self, stream: VerifierStream) -> None:
        """A stream waits no more."""
        if stream in self._streams:
            self._streams.remove(stream)

    def in_order(self, running: Counter[Party], *, may_run: Callable[[VerifierStream], bool]) -> list[VerifierStream]:
        """Who gets the next place, who if not that one, and so on; they stay in line until they leave.

        Args:
            running: places by party.
            may_run: whether a stream may have a place at all now.
        """
        return sorted(
            filter(may_run, self._streams),
            key=lambda stream: (
                [running[party] for party in stream.parties],
                not stream.seated_before,
                stream.opened_at,
            ),
        )

    def holds_up(self, stream: VerifierStream, now: float) -> bool:
        """Whether nobody may pass this stream, though there is no memory for it yet."""
        return stream.seated_before or now >= stream.opened_at + self.patience / 2

    def overdue(self, now: float) -> list[VerifierStream]:
        """Those that have waited too long."""
        return [
            stream for stream in self._streams if not stream.seated_before and now >= stream.opened_at + self.patience
        ]

    def next_overdue(self) -> float | None:
        """When somebody will have waited too long."""
        return min(
            (stream.opened_at + self.patience for stream in self._streams if not stream.seated_before), default=None
        )
