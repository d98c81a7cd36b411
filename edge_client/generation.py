"""The client's side of a stream, without I/O: what is committed, what is guessed beyond it, what to send.

add a proposal -> take a frame -> apply a commit -> (on divergence) start a new path

How far to go, and when to send, is the gamma controller's to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..protocol.acceptance import Proposal
from ..protocol.clock import CLOCK_UNIT, clock_now, rtt_seconds
from ..protocol.errors import IllegalMessageError
from ..protocol.messages import Commit, Draft, EndReason
from ..protocol.path import Path
from .gamma.controller import Outlook, Round

__all__ = ["Committed", "Generation", "round_of"]

_FRAMES_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit delivered.

    Attributes:
        token_ids: the tokens.
        guessed: for each, whether the current path had guessed it.
        tested: each of the path's tokens that it settled: confidence byte, and whether it was right.
        depth: tokens of the path before the first one tested.
        kept: the path goes on.
        block: draft tokens that the step verified; None where the device cannot know.
    """

    token_ids: tuple[int, ...]
    guessed: tuple[bool, ...]
    tested: tuple[tuple[int, bool], ...]
    depth: int
    kept: bool
    block: int | None


class Generation:
    """One answer's sequence and path, on one stream after another where connections are lost.

    Args:
        stream: its id on the connection; 0 before :meth:`resume`.
        prompt_ids: the prompt.
        max_tokens: how many tokens the answer may have.
        stop_ids: ids that end it.
        most_ahead: most draft tokens beyond the committed prefix.
        by_rejection: drafts carry the distribution they were drawn from.
    """

    def __init__(
        self,
        *,
        stream: int,
        prompt_ids: Sequence[int],
        max_tokens: int,
        stop_ids: Collection[int],
        most_ahead: int,
        by_rejection: bool = False,
    ) -> None:
        self.stream = stream
        self.sequence: list[int] = list(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.path = Path(1, self.prompt_length)
        self.paths = 0
        self._end = self.prompt_length + max_tokens
        self._stop_ids = frozenset(stop_ids)
        self._most_ahead = most_ahead
        self._by_rejection = by_rejection
        self._confidences: list[int] = []  # of the path's proposals
        self._sent = 0  # so many of them have been sent
        self._announced = False  # the verifier has heard of the path
        self._promised = False  # its last frame said that more would follow
        self._resting = False  # the verifier was told that nothing is drafted for now, whatever the path
        self._arrived = 0  # an echo has proved that the path had arrived up to this position
        self._sent_at: deque[tuple[int, int]] = deque(maxlen=_FRAMES_REMEMBERED)

    @property
    def answer(self) -> tuple[int, ...]:
        """The committed tokens after the prompt."""
        return tuple(self.sequence[self.prompt_length :])

    @property
    def remaining(self) -> int:
        """Tokens that the answer may still get."""
        return self._end - len(self.sequence)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end the answer, in order."""
        return tuple(sorted(self._stop_ids))

    @property
    def ended(self) -> EndReason | None:
        """Why the answer is over, as its tokens tell it; None while it is not."""
        if len(self.sequence) > self.prompt_length and self.sequence[-1] in self._stop_ids:
            return EndReason.STOP
        return EndReason.LENGTH if self.remaining <= 0 else None

    @property
    def room(self) -> int:
        """How many more tokens the path may get: up to the limits, the answer's end, or a stop id on the path.

        The last token of the answer needs no proposal: the verifier draws it with the block before it.
        """
        if self.path.proposals and self.path.proposals[-1].token in self._stop_ids:
            return 0
        ahead = self.path.end - len(self.sequence)
        return max(0, min(self._most_ahead - ahead, self._end - 1 - self.path.end))

    def outlook(self, now: float) -> Outlook:
        """What the controller has to know."""
        settled = len(self.sequence) - self.path.start
        ahead = self._confidences[settled:]
        unsent = min(len(self.path.proposals) - self._sent, len(ahead))
        return Outlook(now=now, ahead=ahead, unsent=unsent, room=self.room)

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

    def take_frame(self, *, sent_at: int, continues: bool) -> Draft | None:
        """A DRAFT frame of every proposal not yet sent; None when there is nothing new beyond what is committed.

        Args:
            sent_at: the wrapping clock.
            continues: more of the path will follow before a commit is heard. Where that was promised and no longer
                holds, the frame may be empty.
        """
        proposals = self.path.proposals[self._sent :]
        if self.path.end <= len(self.sequence) or not (proposals or (self._promised and not continues)):
            return None
        confidences = self._confidences[self._sent :]
        frame = Draft(
            stream=self.stream,
            path=self.path.id,
            start=self.path.start + self._sent,
            token_ids=tuple(proposal.token for proposal in proposals),
            confidences=() if self._by_rejection else tuple(confidences),
            sent_at=sent_at,
            continues=continues,
            sparse_q=tuple(p.q for p in proposals if p.q is not None) if self._by_rejection else None,
        )
        if not self._sent:
            self.paths += 1
        self._sent = len(self.path.proposals)
        self._announced = True
        self._promised = continues
        self._resting = self._resting and not proposals
        self._sent_at.append((sent_at, self.path.end))
        return frame

    def take_rest(self, *, sent_at: int) -> Draft | None:
        """An empty DRAFT frame that says that nothing will be drafted for now; None where that was said already."""
        if self._resting or self._sent < len(self.path.proposals):
            return None
        self._announced = self._resting = True
        self._promised = False
        return Draft(
            stream=self.stream,
            path=self.path.id,
            start=self.path.end,
            token_ids=(),
            sent_at=sent_at,
            sparse_q=() if self._by_rejection else None,
        )

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
        block = self._verified(commit, position)
        depth = position - self.path.start
        confidences = self._confidences[depth : depth + len(tokens)]
        self.sequence.extend(tokens)
        kept = self.path.settle(position, tokens) and self.path.end >= len(self.sequence)
        if not kept:
            self._restart()
        elif not self._announced:
            self._trim()
        tested = tuple(_until_wrong(zip(confidences, guessed, strict=False)))
        return Committed(tuple(tokens), tuple(guessed), tested, depth, kept, block)

    def resume(self, stream: int, *, most_ahead: int) -> None:
        """Go on as a new stream, whose verifier has heard of no path. What is guessed beyond the committed tokens
        stays, and will be sent again as its first path.

        Args:
            stream: its id on its connection.
            most_ahead: most draft tokens beyond the committed prefix that this verifier takes, in a frame or in all.
        """
        settled = len(self.sequence) - self.path.start
        proposals = self.path.beyond(len(self.sequence))[:most_ahead]
        confidences = self._confidences[settled : settled + len(proposals)]
        self.stream = stream
        self._most_ahead = most_ahead
        self._resting = False
        self._announced = False
        self._restart()
        self.path = Path(1, len(self.sequence), proposals)
        self._confidences = confidences

    def extend(self, token: int) -> None:
        """Take a token that no verifier has committed."""
        self.sequence.append(token)
        self._announced = False
        self._restart()

    def _verified(self, commit: Commit, position: int) -> int | None:
        """Draft tokens in the step behind this commit: those known to have arrived by then.

        A frame's echo proves that it had arrived, and with it all frames before it. An older path was dead already.
        """
        if commit.path != self.path.id:
            return 0
        if commit.echo is not None:
            while self._sent_at:
                sent_at, end = self._sent_at.popleft()
                self._arrived = end
                if sent_at == commit.echo:
                    break
            else:
                return None
        return max(0, self._arrived - position)

    def _check_end(self, position: int, count: int) -> None:
        if self.ended is not None or position + count > self._end:
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
        self.path = Path(self.path.id + self._announced, len(self.sequence))
        self._confidences = []
        self._sent = 0
        self._announced = False
        self._promised = False
        self._sent_at.clear()
        self._arrived = 0


def round_of(commit: Commit, committed: Committed, *, now: float) -> Round:
    """What a controller is told of a commit that arrived at ``now`` (monotonic seconds)."""
    rtt = None
    if commit.echo is not None:
        rtt = rtt_seconds(clock_now(now), commit.echo, commit.queued, commit.computed)
    return Round(
        now=now,
        tokens=len(committed.token_ids),
        tested=committed.tested,
        depth=committed.depth,
        kept=committed.kept,
        block=committed.block,
        rtt=rtt,
        queued=commit.queued * CLOCK_UNIT,
        computed=commit.computed * CLOCK_UNIT,
    )


def _until_wrong(tested: Iterable[tuple[int, bool]]) -> Iterator[tuple[int, bool]]:
    """Up to and with the first that was wrong: what follows it was never tested."""
    for byte, right in tested:
        yield byte, right
        if not right:
            return
