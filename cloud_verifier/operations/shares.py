"""How much of the service each route, or each key, has had."""

from __future__ import annotations

from collections.abc import Callable

from ..engine.stream import Owner, VerifierStream
from .families import share_families
from .instruments import Counts

__all__ = ["Shares"]

_MOST = 100
"""Names that are told apart: metrics must not grow with whatever a configuration, or a client's URL, holds."""

_MOST_LETTERS = 64


class Shares:
    """Totals by party, counted when streams end. Parties beyond the first hundred are ``other``.

    Args:
        party: ``route`` or ``key``.
        name: whose a stream is; an empty name is told as ``default``.
    """

    def __init__(self, party: str, name: Callable[[Owner], str]) -> None:
        self._name = name
        self._known: dict[str, str] = {}
        families = share_families(party)
        self._requests = Counts(families["requests"], [])
        self._prompt = Counts(families["prompt_tokens"], [])
        self._generated = Counts(families["generation_tokens"], [])
        self._drafted = Counts(families["draft_tokens"], [])
        self._accepted = Counts(families["accepted_tokens"], [])

    @property
    def counts(self) -> list[Counts]:
        """All that is counted."""
        return [self._requests, self._prompt, self._generated, self._drafted, self._accepted]

    def ended(self, stream: VerifierStream, outcome: str) -> None:
        """A stream is over."""
        party, counters = self._label(self._name(stream.owner)), stream.counters
        self._requests.add(1, party, outcome)
        self._prompt.add(stream.request.prompt_length, party)
        self._generated.add(counters.committed, party)
        self._drafted.add(counters.drafted, party)
        self._accepted.add(counters.accepted, party)

    def _label(self, name: str) -> str:
        label = self._known.get(name)
        if label is None:
            if len(self._known) >= _MOST:
                return "other"
            label = name.encode("utf-8", "replace").decode()[:_MOST_LETTERS] or "default"
            self._known[name] = label
        return label
