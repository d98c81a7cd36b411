"""The client's side of a stream, without I/O: what is committed, what is guessed beyond it, what to send.

add a proposal -> take a frame -> apply a commit -> (on divergence) start a new path
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..protocol.acceptance import Proposal
from ..protocol.errors import IllegalMessageError
from ..protocol.messages import Commit, Draft
from ..protocol.path import Path

__all__ = ["Committed", "Generation"]


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit delivered: tokens, and for each whether the current path had guessed it."""

    token_ids: tuple[int, ...]
    guessed: tuple[bool, ...]


class Generation:
    """One stream's sequence and path.

    Args:
        stream: its id on the connection.
        prompt_ids: the prompt.
        max_tokens: how many tokens the answer may have.
        stop_ids: ids that end it.
        look_ahead: draft tokens proposed beyond the committed prefix; 0 is cloud-only.
    """

    def __init__(
        self,
        *,
        stream: int,
        prompt_ids: Sequence[int],
        max_tokens: int,
        stop_ids: Collection[int],
        look_ahead: int,
    ) -> None:
        self.stream = stream
        self.sequence: list[int] = list(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.path = Path(1, self.prompt_length)
        self.paths = 0
        self._end = self.prompt_length + max_tokens
        self._stop_ids = frozenset(stop_ids)
        self._look_ahead = look_ahead
        self._confidences: list[int] = []
        self._sent = 0

    @property
    def answer(self) -> tuple[int, ...]:
        """The committed tokens after the prompt."""
        return tuple(self.sequence[self.prompt_length :])

    def wants_proposal(self) -> bool:
        """Whether the path should grow: it is short of the look-ahead, and the answer does not end within it.

        The last token of the answer needs no proposal: the verifier draws it with the block before it.
        """
        if self.path.end - len(self.sequence) >= self._look_ahead or self.path.end >= self._end - 1:
            return False
        return not (self.path.proposals and self.path.proposals[-1].token in self._stop_ids)

    def context(self) -> list[int]:
        """The tokens that the next proposal follows: committed, then the path beyond them."""
        return self.sequence + [proposal.token for proposal in self.path.beyond(len(self.sequence))]

    def add(self, path: Path, proposal: Proposal, confidence: int) -> bool:
        """Append a proposal made for ``path``; one made for a path that has been left meanwhile is refused."""
        if path is not self.path:
            return False
        path.proposals.append(proposal)
        self._confidences.append(confidence)
        return True

    def take_frame(self, *, sent_at: int) -> Draft | None:
        """A DRAFT frame of every proposal not yet sent; None when there is nothing new beyond what is committed."""
        proposals = self.path.proposals[self._sent :]
        if not proposals or self.path.end <= len(self.sequence):
            return None
        confidences = self._confidences[self._sent :]
        frame = Draft(
            stream=self.stream,
            path=self.path.id,
            start=self.path.start + self._sent,
            token_ids=tuple(proposal.token for proposal in proposals),
            confidences=() if proposals[0].q is not None else tuple(confidences),
            sent_at=sent_at,
            continues=self.wants_proposal(),
            sparse_q=None if proposals[0].q is None else tuple(p.q for p in proposals if p.q is not None),
        )
        self.paths += not self._sent
        self._sent = len(self.path.proposals)
        return frame

    def apply(self, commit: Commit) -> Committed:
        """Take a commit. The path survives it where it agrees; otherwise a new path starts at the new end.

        Raises:
            IllegalMessageError: the verifier accepted tokens that were never drafted, or went on beyond the end.
        """
        position = len(self.sequence)
        accepted = self._accepted(commit, position)
        tokens = accepted if commit.token is None else [*accepted, commit.token]
        self._check_end(position, len(tokens))
        ahead = [proposal.token for proposal in self.path.beyond(position)]
        guessed = [offset < len(ahead) and ahead[offset] == token for offset, token in enumerate(tokens)]
        self.sequence.extend(tokens)
        if not self.path.settle(position, tokens) or self.path.end < len(self.sequence):
            self._restart()
        elif not self._sent:
            self._trim()
        return Committed(tuple(tokens), tuple(guessed))

    def _check_end(self, position: int, count: int) -> None:
        ended = position > self.prompt_length and self.sequence[-1] in self._stop_ids
        if ended or position + count > self._end:
            raise IllegalMessageError("the verifier went on beyond the end of the answer", stream=self.stream)

    def _accepted(self, commit: Commit, position: int) -> list[int]:
        if not commit.accepted:
            return []
        proposals = self.path.beyond(position) if commit.path == self.path.id else []
        sent = max(0, self.path.start + self._sent - position)
        if commit.accepted > min(len(proposals), sent):
            raise IllegalMessageError(
                f"the verifier accepted {commit.accepted} tokens of path {commit.path}, which were never sent",
                stream=self.stream,
            )
        return [proposal.token for proposal in proposals[: commit.accepted]]

    def _trim(self) -> None:
        """Nothing of the path was sent yet, so what has been committed meanwhile need not be sent either."""
        settled = len(self.sequence) - self.path.start
        del self.path.proposals[:settled], self._confidences[:settled]
        self.path.start += settled

    def _restart(self) -> None:
        """Start a new path at the committed end; an unused path is moved instead, as nobody has heard of its id."""
        self.path = Path(self.path.id + (self._sent > 0), len(self.sequence))
        self._confidences = []
        self._sent = 0
