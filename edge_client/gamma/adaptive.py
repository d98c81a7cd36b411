"""The default controller: weighs each next token by what it can gain, with what this device has measured.

The verifier does not wait under the latency policy, so the question is not "how many tokens a round" but "is the next
one worth drafting". It gains a step of the target if the path lives to it. It costs the time by which a new path would
start later, should the commit that ends this one arrive meanwhile, and the time that the target takes to verify it.

    state      drafts                                    leaves it
    drafting   while the next token is worth it          when even on surer text drafting would gain nothing; under the
                                                         cost policy, when next to no token is right
    resting    a probe of a few tokens, now and then     when that has changed

A probe is also drafted where no token is worth it, so that better times are noticed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .controller import Controller, Decision, Outlook, Round
from .estimate import Recent
from .figures import Figures

__all__ = ["AdaptiveController"]

_FLOOR = 0.03
"""A token less likely than this is not worth the device's energy."""

_DELAY_WEIGHT = 0.5
"""Of a second by which a path starts later, at most about half is lost: the target runs ahead meanwhile."""

_VERIFIED = 0.85
"""Share of the tokens sent that the target computes where the round trip is 0. It falls as the round trip grows: more
of them arrive on a path that is dead by then.
"""

_ON, _OFF = 1.01, 1.003
"""Predicted gains on surer text at which drafting begins again and ends; between them things stay as they are."""

_PASSES_ON, _PASSES_OFF = 0.2, 0.1
"""Shares of right tokens at which, under the cost policy, drafting begins again and ends."""

_SURER_TEXT = 0.5
"""Half as many wrong tokens: text has sure stretches, and where the network is slow all gain comes from them."""

_REVIEW = 16
"""Commits between two predictions."""

_PROBE = 3
"""Tokens of a probe."""

_PROBE_EVERY, _PROBE_SELDOM = 8, 32
"""Commits from one probe to the next: at first, and after many that found nothing."""

_MOST_GROUP, _MOST_COST_GROUP = 8, 16
"""Tokens of a frame; under the cost policy of a group, which is what a verifier takes in one step."""

_UNKNOWN_SHARE, _MOST_SHARE = 0.25, 0.9
"""Under the cost policy, drafting time of a token in steps of the target: before both are known, and at most."""

_TOO_DOUBTFUL = 0.1
"""Under the cost policy, what lies behind sent tokens less likely than this is not drafted before they are answered."""

_TIMER = 0.0015
"""Seconds that timers and handing over between threads may take."""


class AdaptiveController(Controller):
    """See the module.

    Args:
        figures: of this device; the controller keeps them up to date.
        most: upper bound of the look-ahead.
        saves_passes: the cost policy: the verifier waits for drafts, so that tokens are sent in whole groups.
    """

    def __init__(self, figures: Figures, *, most: int, saves_passes: bool = False) -> None:
        self._figures = figures
        self._most = most
        self._saves_passes = saves_passes
        self._resting = False
        self._since_review = 0
        self._since_probe = 0
        self._probing = False
        self._probe_gap = _PROBE_EVERY
        self._heard: float | None = None
        self._pace = Recent(9)

    # --- what happens -------------------------------------------------------------------------------------------

    def drafted(self, seconds: float) -> None:
        """See :class:`Controller`."""
        self._figures.draft.add(seconds)

    def committed(self, round_: Round) -> None:
        """See :class:`Controller`."""
        self._figures.learn(round_)
        if any(right for _, right in round_.tested):
            self._probe_gap = _PROBE_EVERY
        if self._heard is not None:
            self._pace.add(round_.now - self._heard)
        self._heard = round_.now
        self._since_review += 1
        self._since_probe += 1
        if self._since_review >= _REVIEW:
            self._review()

    def _review(self) -> None:
        self._since_review = 0
        if self._saves_passes:  # a slow draft saves passes as well; one that is never right does not
            self._resting = self._figures.hit_rate < (_PASSES_ON if self._resting else _PASSES_OFF)
        elif self._figures.known:
            gain = self._figures.predicted_gain(doubt=_SURER_TEXT)
            self._resting = gain < (_ON if self._resting else _OFF)

    # --- what to do ---------------------------------------------------------------------------------------------

    def decide(self, outlook: Outlook) -> Decision:
        """See :class:`Controller`."""
        if not outlook.ahead:  # a path ends as it began: what is decided here holds for all of it
            self._probing = self._resting or not (self._saves_passes or self._worth_drafting(outlook))
        if self._probing:
            return self._probe(outlook)
        if self._saves_passes:
            return self._decide_group(outlook)
        draft = self._worth_drafting(outlook)
        send = outlook.unsent > 0 and not (draft and self._may_wait(outlook))
        return Decision(draft=draft, send=send, continues=draft)

    def _probe(self, outlook: Outlook) -> Decision:
        """Draft a few tokens now and then, send them in one frame, and leave the rest to the verifier."""
        ahead = len(outlook.ahead)
        if ahead == 0:
            if self._since_probe < self._probe_gap or outlook.room <= 0:
                return Decision(draft=False, send=False, rests=self._saves_passes)
            self._since_probe = 0
            self._probe_gap = min(2 * self._probe_gap, _PROBE_SELDOM)
        draft = outlook.room > 0 and ahead < _PROBE and outlook.unsent == ahead
        return Decision(draft=draft, send=not draft and outlook.unsent > 0, continues=False)

    def _worth_drafting(self, outlook: Outlook) -> bool:
        if outlook.room <= 0 or len(outlook.ahead) >= self._most:
            return False
        return self._next_survival(outlook.ahead) > max(_FLOOR, self._price())

    def _next_survival(self, ahead: Sequence[int]) -> float:
        """The chance that a token not yet drafted is right, and all of ``ahead`` before it."""
        return self._figures.hit_rate * self._all_right(ahead)

    def _all_right(self, confidences: Sequence[int]) -> float:
        return math.prod(map(self._figures.calibration.probability, confidences))

    def _price(self) -> float:
        """What drafting a token costs, in steps of the target.

        Of the half of its drafting time that a new path would wait on average, what is lost of it; and the time it
        takes to verify.
        """
        draft, step = self._figures.draft.median, self._figures.step.seconds()
        if step <= 0.0:
            return 0.0
        ended = min(1.0, draft / step) * self._figures.divergence
        verified = _VERIFIED * step / (step + self._figures.rtt.median)
        return _DELAY_WEIGHT * ended * (draft / 2) / step + verified * self._figures.step.slope / step

    def _may_wait(self, outlook: Outlook) -> bool:
        """Whether the next token can still be drafted and sent with these before the target's next step begins.

        One frame for several tokens then costs no time. Steps follow one another at the pace of the commits, so their
        beginnings are known from when the last one was heard.
        """
        figures, pace, draft = self._figures, self._pace.median, self._figures.draft.median
        if self._heard is None or not figures.rtt.known or pace < 2 * draft or outlook.unsent >= _MOST_GROUP:
            return False
        since = outlook.now - (self._heard - figures.rtt.median)
        left = pace - since % pace
        margin = _TIMER + 2 * figures.rtt.spread + 0.03 * since
        return draft + margin < left

    # --- the cost policy ----------------------------------------------------------------------------------------

    def _decide_group(self, outlook: Outlook) -> Decision:
        """Collect tokens while the next one is worth its wait, then send them as a whole.

        The verifier holds its step until a path's end is told, so a token costs its drafting time, and gains a step
        if it survives. Beyond the group drafting goes on, for the next.
        """
        draft, step = self._figures.draft.median, self._figures.step.seconds()
        share = min(draft / step, _MOST_SHARE) if step > 0 else _UNKNOWN_SHARE
        sent = len(outlook.ahead) - outlook.unsent
        group = outlook.ahead[sent:]
        more = outlook.room > 0 and len(outlook.ahead) < self._most
        if group and (not more or len(group) >= _MOST_COST_GROUP or self._next_survival(group) < share):
            return Decision(draft=False, send=True, continues=False)
        return Decision(draft=more and self._all_right(outlook.ahead[:sent]) > _TOO_DOUBTFUL, send=False)
