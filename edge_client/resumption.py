"""Whether a generation that met a failure goes on, and when. No I/O, and no clock of its own."""

from __future__ import annotations

from ..protocol.errors import BusyError, DraftwireError, InternalVerifierError
from .backoff import Backoff

__all__ = ["Resumption", "is_loss"]


class Resumption:
    """Decides for one generation.

    What nothing but the caller can mend ends it. A lost verifier is searched for again and again, a busy one waited
    for, and one that failed on this stream tried once more; all within a budget of time that begins with a failure, and
    anew once a token has been committed since.

    Args:
        seconds: the budget; 0 is to give up at once.
        wait_when_busy: whether to wait for a verifier without room.
        backoff: spaces the attempts on a connection that holds.
    """

    def __init__(self, *, seconds: float, wait_when_busy: bool, backoff: Backoff | None = None) -> None:
        self._seconds = seconds
        self._wait_when_busy = wait_when_busy
        self._backoff = backoff or Backoff()
        self._failed = False

    def progressed(self) -> None:
        """A token has been committed."""
        self._backoff.reset()

    def wait_after(self, error: DraftwireError, now: float, *, lost: bool) -> float | None:
        """Seconds to wait before going on; None to end with ``error``.

        Args:
            now: monotonic seconds.
            lost: no stream can be opened on the connection any more; whoever looks for another spaces the looks.
        """
        if not error.retryable or (isinstance(error, BusyError) and not self._wait_when_busy):
            return None
        if isinstance(error, InternalVerifierError):
            if self._failed:
                return None
            self._failed = True
        if not self._backoff.begun:
            self._backoff.begin(now, self._seconds)
        wait = self._backoff.next_wait(now, at_least=0.0 if lost else error.retry_after or 0.0)
        return 0.0 if lost and wait is not None else wait


def is_loss(error: DraftwireError) -> bool:
    """Whether there is no verifier, for now: not one that is full, nor one that failed on what was asked."""
    return error.retryable and not isinstance(error, BusyError | InternalVerifierError)
