"""One log line when a stream begins and one when it ends: who, how much, how fast, and what became of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ..engine.observer import CommitReport, Observer
from ..engine.stream import Owner, VerifierStream
from .lifespans import Life, Lifespans
from .tally import speculation_of

__all__ = ["RequestLog"]

logger = logging.getLogger("draftwire.requests")

_MOST_REFUSALS = 20
"""Lines a second; a client that asks again and again must not fill the disk."""


class RequestLog(Observer):
    """Writes to the logger ``draftwire.requests``. Figures only: no token, no text, no key.

    Args:
        clock: in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lives = Lifespans()
        self._clock = clock
        self._second = 0
        self._refusals = 0
        self._silent = 0

    def refused(self, owner: Owner, code: str) -> None:
        """See :class:`Observer`."""
        second = int(self._clock())
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals > _MOST_REFUSALS:
            self._silent += 1
            return
        extra: dict[str, object] = {**_whose(owner), "reason": code}
        more = ""
        if self._silent:
            extra["unlogged_refusals"] = self._silent
            more = f" (and {self._silent} others were)"
            self._silent = 0
        logger.info("%s: refused, %s%s", _name(owner), code, more, extra=extra)

    def opened(self, stream: VerifierStream, *, waited: float) -> None:
        """See :class:`Observer`."""
        self._lives.begin(stream, waited=waited)
        if not logger.isEnabledFor(logging.INFO):
            return
        request = stream.request
        extra = {
            **_whose(stream.owner),
            "stream": request.stream,
            "prompt_tokens": request.prompt_length,
            "cached_tokens": stream.cached,
            "max_tokens": request.max_tokens,
            "speculation": speculation_of(stream),
            "policy": request.policy.name.lower(),
            "waited_seconds": round(waited, 6),
        }
        message = "%s stream %d: opened, %d prompt tokens, %d of them known"
        logger.info(message, _name(stream.owner), request.stream, request.prompt_length, stream.cached, extra=extra)

    def committed(self, stream: VerifierStream, report: CommitReport) -> None:
        """See :class:`Observer`."""
        self._lives.of(stream).commit(report.at)

    def preempted(self, stream: VerifierStream) -> None:
        """See :class:`Observer`."""
        extra = {**_whose(stream.owner), "stream": stream.request.stream}
        message = "%s stream %d: gave its memory up and waits"
        logger.info(message, _name(stream.owner), stream.request.stream, extra=extra)

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """See :class:`Observer`."""
        life = self._lives.end(stream)
        if logger.isEnabledFor(logging.INFO):
            self._log_end(stream, life, outcome)

    def _log_end(self, stream: VerifierStream, life: Life, outcome: str) -> None:
        counters, first = stream.counters, life.first_token_seconds
        seconds = self._clock() - life.opened_at
        extra = {
            **_whose(stream.owner),
            "stream": stream.request.stream,
            "outcome": outcome,
            "speculation": speculation_of(stream),
            "prompt_tokens": stream.request.prompt_length,
            "committed_tokens": counters.committed,
            "drafted_tokens": counters.drafted,
            "accepted_tokens": counters.accepted,
            "run_ahead_tokens": counters.run_ahead,
            "target_passes": counters.target_passes,
            "first_token_seconds": None if first is None else round(first, 6),
            "seconds": round(seconds, 6),
        }
        logger.info(
            "%s stream %d: %s, %d tokens in %.2f s, %d of %d draft tokens accepted",
            _name(stream.owner),
            stream.request.stream,
            outcome,
            counters.committed,
            seconds,
            counters.accepted,
            counters.drafted,
            extra=extra,
        )


def _whose(owner: Owner) -> dict[str, object]:
    return {"request_id": owner.request_id, "tenant": owner.tenant.name, "route": owner.route}


def _name(owner: Owner) -> str:
    return owner.request_id or owner.tenant.name
