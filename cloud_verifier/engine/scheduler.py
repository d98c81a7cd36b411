"""The verifier's policy: which streams take part in the next step, which wait, and how much of a draft is verified.

**Waiting.** The first row that fits a stream decides. "T" is what a step over one token takes, "chance" that of the
draft token waited for being right, with all before it that are not committed:

| stream | policy | its block | beside it | waits |
|---|---|---|---|---|
| not drafted for, resting, or let down too often; reading its prompt; at its last token | any | any | any | no |
| with ``--run-ahead always`` | any | any | any | no |
| with as many proposals as a step may take | any | full | any | no |
| by rejection, its bonus withheld | any | empty | any | until its patience ends |
| any | cost | empty | any | until its patience ends |
| on a path that goes on, chance > token gap / T | cost | some | any | until the next token is two gaps late |
| with a draft due within T, T here of this step | latency | empty | a ``crowd`` | until that is overdue |
| with a draft due within chance · T / 4 | latency | any | nobody at work | until that is overdue |
| any other | any | any | any | no |

``--run-ahead never`` is the cost policy for every stream. The last kind of waiting puts off a step that nobody else
needs, and for less time than it is likely to save; while others have work, a stream that asks for latency joins them,
as letting their step go by would cost it more than any draft brings. The other kinds let steps for others go by: fewer
target passes a token, for more time.

Waiting in vain halves patience; after four times in a row a stream waits no more until a usable draft arrives. So a
stream that nobody drafts for, whatever its client announced, soon runs like any other.

**The budget.** A step computes so many tokens at most: one for each stream that decodes; then prompts, in equal parts
and in turns, and while others decode no more than doubles the step; then drafts. Of those it takes, over all streams
in the order of their chance, what raises its rate, tokens committed a second. A step that many share takes long enough
for doubtful tokens to be no longer worth their time, so this is what load changes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from ...protocol.messages import Policy
from .block_sizes import choose_drafts
from .prompt_shares import LEAST_SHARE, PromptShares
from .rhythm import Due, Typical
from .speculation import Speculation
from .step_model import StepModel
from .stream import VerifierStream, Work

__all__ = ["Plan", "RunAhead", "Scheduler"]

_LEAST_PATIENCE = 0.05
_MOST_PATIENCE = 2.0
_MISSES = 4
_WORTH = 0.25  # of the chance that a draft is right, in steps; it saves at most about half of that

_MIXED = 64
"""Steps in a row that decode and read prompts, before one without prompts shows anew how long decoding takes."""

_PROMPT_GUESS = 64  # prompt tokens that take as long as a step, until more is known; fewer than on any device


class RunAhead(Enum):
    """Whether the verifier advances a stream whose drafts have not arrived."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step's work; when there is none, ``wake_at`` says when a held stream's patience ends, if one is held."""

    work: list[Work]
    wake_at: float | None = None


@dataclass(frozen=True, slots=True)
class _Hold:
    """A stream waits for a draft; ``aside``: it lets steps for other streams go by."""

    until: float
    aside: bool


class Scheduler:
    """Plans steps.

    Args:
        run_ahead: ``auto`` runs ahead for streams that ask for latency, and holds those that ask for cost.
        max_block: draft tokens verified of one stream in one step.
        prefill_chunk: prompt tokens computed in one step at most, shared by the streams that are reading their prompts;
            while others decode, fewer: no more than make the step about twice as long.
        step_tokens: the budget of a step: one token for each stream, in any case, then prompts, then drafts.
        crowd: with so many other streams in the step, one that asks for latency may wait for its draft as well. None
            for never: while a pass of one stream more costs no more than its token, running ahead is the cheapest
            token there is, and waiting saves passes but no time.
        patience: seconds that a stream which waits does so for its first draft.
    """

    def __init__(
        self,
        *,
        run_ahead: RunAhead = RunAhead.AUTO,
        max_block: int = 16,
        prefill_chunk: int = 256,
        step_tokens: int = 512,
        crowd: int | None = None,
        patience: float = 0.5,
    ) -> None:
        self._run_ahead = run_ahead
        self._max_block = max_block
        self._prefill_chunk = prefill_chunk
        self._step_tokens = step_tokens
        self._crowd = crowd
        self._patience = patience
        self._steps = StepModel()
        self._reading = Typical()  # seconds a prompt token
        self._mixed = 0  # steps since decoding was last seen by itself
        self._prompts = PromptShares()

    def stepped(self, work: Sequence[Work], seconds: float) -> None:
        """Learn how long a step took; where it read prompts, what those cost beside the rest."""
        prompt_tokens = sum(share.prompt_tokens for share in work)
        tokens = sum(len(share.block.tokens) for share in work) - prompt_tokens
        if not prompt_tokens:
            self._steps.record(tokens, seconds)
            self._mixed = 0
            return
        self._mixed += bool(tokens)
        decoding = self._steps.predict(tokens) if tokens else 0.0
        if decoding is not None and seconds > decoding:
            self._reading.add((seconds - decoding) / prompt_tokens)

    def plan(self, streams: Iterable[VerifierStream], now: float) -> Plan:
        """Choose the work of the next step."""
        streams = list(streams)
        holds = [self._hold(stream, now) for stream in streams]
        if None not in holds:
            for stream in streams:
                stream.held = True
            return Plan([], min((hold.until for hold in holds if hold is not None), default=None))
        self._thin_out(streams, holds, now)
        running = []
        for stream, hold in zip(streams, holds, strict=True):
            if hold is not None and hold.aside:
                stream.held = True
                continue
            if stream.held and hold is None:  # what it waited for has not come
                stream.misses += 1
            stream.held = False
            running.append(stream)
        return Plan(self._share_out(running))

    # --- who waits ----------------------------------------------------------------------------------------------

    def _hold(self, stream: VerifierStream, now: float) -> _Hold | None:
        """What the table above says of one stream, but for a crowd."""
        if self._run_ahead is RunAhead.ALWAYS or not _may_wait(stream):
            return None
        patient = stream.request.policy is Policy.COST or self._run_ahead is RunAhead.NEVER
        block = len(stream.proposed())
        if block >= min(self._max_block, stream.remaining - 1):
            return None
        hold: _Hold | None
        if not block and (patient or stream.withheld):
            hold = _Hold(stream.waiting_since + self._patience_with(stream), aside=True)
        elif patient:
            hold = self._next_token(stream)
        else:
            hold = self._soon(stream, block, now)
        return None if hold is None or hold.until <= now else hold

    def _patience_with(self, stream: VerifierStream) -> float:
        gap = stream.rhythm.reply
        if gap.value is None:
            return self._patience * 0.5**stream.misses
        return min(max(2 * gap.value + 4 * gap.spread, _LEAST_PATIENCE), _MOST_PATIENCE) * 0.5**stream.misses

    def _next_token(self, stream: VerifierStream) -> _Hold | None:
        """Cost policy, some tokens there: one more is worth a wait that is shorter than the step it may save."""
        step, gap = self._steps.predict(1), stream.rhythm.token.value
        due = stream.rhythm.next_on_path(1)
        if not stream.path_goes_on or step is None or gap is None or due is None:
            return None
        if stream.survival()[-1] * stream.odds.hit * step <= gap:
            return None
        return _Hold(due.until + gap, aside=True)

    def _soon(self, stream: VerifierStream, block: int, now: float) -> _Hold | None:
        """Latency policy: a step is put off for a draft that is as good as here, if it is likely to be right."""
        if block and not stream.path_goes_on:
            return None
        step, due = self._steps.predict(1), stream.due(now)
        if step is None or due is None:
            return None
        chance = stream.odds.hit**due.tokens * (stream.survival()[-1] if block else 1.0)
        return _within(stream, due, _WORTH * chance * step, aside=False)

    def _thin_out(self, streams: Sequence[VerifierStream], holds: list[_Hold | None], now: float) -> None:
        """In a crowd, put aside the streams whose drafts will be here after this step."""
        size = sum(hold is None or not hold.aside for hold in holds)
        if self._crowd is None or self._run_ahead is not RunAhead.AUTO:
            return
        for index, stream in enumerate(streams):
            if size <= self._crowd:
                return
            hold = holds[index]
            if (hold is not None and hold.aside) or not _may_wait(stream) or stream.proposed():
                continue
            step, due = self._steps.predict(size), stream.due(now)
            if step is None or due is None:
                continue
            hold = _within(stream, due, step, aside=True)
            if hold is not None and hold.until > now:
                holds[index] = hold
                size -= 1

    # --- how much of each ---------------------------------------------------------------------------------------

    def _share_out(self, streams: Sequence[VerifierStream]) -> list[Work]:
        """One token for each stream that decodes; then prompts; then drafts, as far as they are worth it."""
        decoding = [stream for stream in streams if not stream.prefilling]
        reading = [stream for stream in streams if stream.prefilling]
        parts = self._prompts.share(reading, tokens=self._prompt_tokens(len(decoding)))
        pending = {id(stream): part for stream, part in zip(reading, parts, strict=True)}
        ending = [stream for stream in reading if pending[id(stream)] >= len(stream.sequence) - stream.cached]
        tokens = len(decoding) + sum(parts)
        sizes = choose_drafts(
            [*decoding, *ending],
            room=self._step_tokens - tokens,
            most=self._max_block,
            tokens=tokens,
            seconds=lambda count: self._seconds(count - sum(parts), sum(parts)),
        )
        blocks = {id(stream): size for stream, size in zip([*decoding, *ending], sizes, strict=True)}
        return [
            stream.work(max_block=blocks.get(id(stream), 0), prefill_chunk=pending.get(id(stream), 1))
            for stream in streams
            if pending.get(id(stream), 1)
        ]

    def _seconds(self, tokens: int, prompt_tokens: int) -> float | None:
        """Of a step over so many tokens and prompt tokens."""
        decoding = self._steps.predict(max(1, tokens))
        if decoding is None or not prompt_tokens:
            return decoding
        return decoding + prompt_tokens * self._prompt_token_seconds(decoding)

    def _prompt_token_seconds(self, step: float) -> float:
        if self._reading.value is not None:
            return self._reading.value
        longer = self._steps.predict(2)
        return step if longer is None else max(longer - step, step / _PROMPT_GUESS)

    def _prompt_tokens(self, decoding: int) -> int:
        """Prompt tokens of a step: while others decode, about as long as their step takes, so that none stalls.

        0 where it is not known, or no more, how long that is: then what decodes has a step for itself.
        """
        most = min(self._prefill_chunk, max(1, self._step_tokens - decoding))
        if not decoding:
            return most
        step = self._steps.predict(decoding)
        if step is None or self._mixed >= _MIXED:
            return 0
        cost = self._prompt_token_seconds(step)
        return max(min(LEAST_SHARE, most), min(most, round(step / cost) if cost else most))


def _may_wait(stream: VerifierStream) -> bool:
    if stream.prefilling or stream.resting or not stream.drafting:
        return False
    if stream.speculation is Speculation.SHADOW:  # its answer is plain, and plain answers wait for nothing
        return False
    return stream.remaining > 1 and stream.misses < _MISSES  # nobody drafts a last token


def _within(stream: VerifierStream, due: Due, longest: float, *, aside: bool) -> _Hold | None:
    """Hold for a draft due within ``longest`` of the last commit, from a client that keeps time as closely."""
    if due.at > stream.waiting_since + longest or 2 * due.spread > longest:
        return None
    return _Hold(due.until, aside)
