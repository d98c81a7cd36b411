"""Takes speculation away from a route where figures say that it harms, and gives it back slowly.

A state machine that knows no clock and no engine: it is told of streams that have ended and of the time.

**HEALTHY**: streams draft, but for a small share that keeps the baseline fresh. Once ``min_samples`` streams are in
the window and a threshold is passed, it trips.

**TRIPPED**: no stream drafts (or all do in shadow). After the cool-down it is tried again, unless acceptance in shadow
is still too low: then another cool-down begins.

**PROBING**: a share of the streams drafts. Each time as many have ended as it takes to judge, they are judged. One bad
window trips it again; ``good_windows`` good ones in a row heal it.

Every state begins with empty windows, the baseline's excepted, so no stream is judged twice. So from one trip to the
next it takes a cool-down and ``min_samples`` streams at least, and from a trip to health ``good_windows`` times as
many.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique

from ..engine.speculation import Speculation
from .thresholds import Thresholds
from .window import Sample, Window, acceptance_of, error_rate_of, p95

__all__ = ["TABLE", "Breaker", "Event", "State", "Switch"]


@unique
class State(Enum):
    """How a route's speculation stands."""

    HEALTHY = "healthy"
    TRIPPED = "tripped"
    PROBING = "probing"


@unique
class Event(Enum):
    """What moves it."""

    HARM = "harm"
    COOLED = "cooled"
    HEALED = "healed"


TABLE: dict[tuple[State, Event], State] = {
    (State.HEALTHY, Event.HARM): State.TRIPPED,
    (State.TRIPPED, Event.COOLED): State.PROBING,
    (State.PROBING, Event.HARM): State.TRIPPED,
    (State.PROBING, Event.HEALED): State.HEALTHY,
}
"""Everything else stays as it is."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of state: ``reason`` is one of few words, ``detail`` a line for people."""

    to: State
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class _Verdict:
    """``complete`` where every threshold could be judged; ``reason`` is empty where none was passed."""

    complete: bool
    reason: str = ""
    detail: str = ""


class Breaker:
    """One route's.

    Args:
        thresholds: may be set anew at any time.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.state = State.HEALTHY
        self._drafting = Window()
        self._shadow = Window()
        self._baseline = Window()
        self._since = 0.0
        self._good = 0
        self.thresholds = thresholds

    @property
    def thresholds(self) -> Thresholds:
        """What is tolerated."""
        return self._thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self._baseline.seconds = thresholds.baseline_seconds
        self._shadow.seconds = thresholds.window_seconds
        self._age_by_state()

    # --- what it decides ----------------------------------------------------------------------------------------

    def decide(self, draw: float) -> Speculation:
        """For a new stream that drew ``draw``, a number in [0, 1)."""
        thresholds = self._thresholds
        match self.state:
            case State.HEALTHY:
                keeps_baseline = thresholds.max_tpot_ratio is not None and draw < thresholds.baseline_share
                return Speculation.OFF if keeps_baseline else Speculation.ON
            case State.PROBING:
                return Speculation.ON if draw < thresholds.probe_share else thresholds.tripped
            case State.TRIPPED:
                return thresholds.tripped

    # --- what it is told ----------------------------------------------------------------------------------------

    def look(self, now: float) -> Switch | None:
        """Time has passed."""
        thresholds = self._thresholds
        if self.state is not State.TRIPPED or now < self._since + thresholds.cooldown_seconds:
            return None
        self._shadow.forget_old(now)
        seen = acceptance_of(self._shadow, at_least=thresholds.min_samples)
        if seen is not None and thresholds.min_acceptance is not None and seen < thresholds.min_acceptance:
            self._since = now
            return None
        return self._move(Event.COOLED, now, "cooldown", f"{thresholds.cooldown_seconds:g} s have passed")

    def record(self, sample: Sample, speculation: Speculation) -> Switch | None:
        """A stream has ended that was opened with ``speculation``, OFF also standing for a client without drafts."""
        match speculation:
            case Speculation.OFF:
                self._baseline.add(sample)
            case Speculation.SHADOW:
                self._shadow.add(sample)
            case Speculation.ON:
                return self._record_drafting(sample)
        return None

    def _record_drafting(self, sample: Sample) -> Switch | None:
        if self.state is State.TRIPPED:  # opened before
            return None
        self._drafting.add(sample)
        verdict = self._judge(sample.at)
        if verdict.reason:
            return self._move(Event.HARM, sample.at, verdict.reason, verdict.detail)
        if self.state is State.PROBING and verdict.complete:
            self._good += 1
            self._drafting.clear()
            if self._good >= self._thresholds.good_windows:
                return self._move(Event.HEALED, sample.at, "recovered", f"{self._good} good windows in a row")
        return None

    def _move(self, event: Event, now: float, reason: str, detail: str) -> Switch | None:
        state = TABLE.get((self.state, event))
        if state is None:
            return None
        self.state, self._since, self._good = state, now, 0
        self._drafting.clear()
        self._shadow.clear()
        self._age_by_state()
        return Switch(state, reason, detail)

    def _age_by_state(self) -> None:
        """While probing, streams are few, and count however old they are."""
        self._drafting.seconds = None if self.state is State.PROBING else self._thresholds.window_seconds

    # --- the figures --------------------------------------------------------------------------------------------

    def _judge(self, now: float) -> _Verdict:
        self._baseline.forget_old(now)
        verdicts = [self._judge_errors(), self._judge_acceptance(), self._judge_tpot()]
        enough = len(self._drafting) >= self._thresholds.min_samples
        complete = _Verdict(enough and all(verdict.complete for verdict in verdicts))
        return next((verdict for verdict in verdicts if verdict.reason), complete)

    def _judge_errors(self) -> _Verdict:
        most = self._thresholds.max_error_rate
        if most is None:
            return _Verdict(True)
        seen = error_rate_of(self._drafting, at_least=self._thresholds.min_samples)
        if seen is None or seen <= most:
            return _Verdict(seen is not None)
        return _Verdict(True, "errors", f"{seen:.3f} of the streams failed, more than {most:g}")

    def _judge_acceptance(self) -> _Verdict:
        least = self._thresholds.min_acceptance
        if least is None:
            return _Verdict(True)
        seen = acceptance_of(self._drafting, at_least=self._thresholds.min_samples)
        if seen is None or seen >= least:
            return _Verdict(seen is not None)
        return _Verdict(True, "acceptance", f"{seen:.3f} of the draft tokens were accepted, less than {least:g}")

    def _judge_tpot(self) -> _Verdict:
        """Without a baseline nothing can be said, and nothing more is waited for."""
        ratio, least = self._thresholds.max_tpot_ratio, self._thresholds.min_samples
        if ratio is None or (baseline := p95(self._baseline, at_least=least)) is None:
            return _Verdict(True)
        seen = p95(self._drafting, at_least=least)
        if seen is None or seen <= ratio * baseline:
            return _Verdict(seen is not None)
        return _Verdict(
            True,
            "tpot",
            f"p95 {1000 * seen:.1f} ms a token, more than {ratio:g} times {1000 * baseline:.1f} ms without",
        )
