"""The figures that undo speculation where it harms, and how slowly it comes back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError
from ..engine.speculation import Speculation

__all__ = ["Thresholds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """For one route. A threshold of None is not watched.

    Attributes:
        min_acceptance: least share of verified draft tokens that must have been accepted, over the window.
        max_tpot_ratio: most that the drafting streams' p95 of seconds per output token may be, as a multiple of the
            p95 of streams without drafts.
        max_error_rate: largest share of drafting streams that may end by a fault of the verifier.
        window_seconds: age up to which streams count, by when they ended.
        baseline_seconds: the same for the streams without drafts, which may be few.
        min_samples: streams that must have ended before anything is concluded from them.
        cooldown_seconds: how long a tripped route stays so before it is tried again.
        good_windows: how many windows of ``min_samples`` streams in a row must be good while it is tried.
        probe_share: share of the streams that draft while it is tried.
        baseline_share: share of a healthy route's streams that go without drafts, to keep the baseline fresh.
        tripped: what a tripped route's streams do, off or shadow. In shadow acceptance is still measured, and a route
            that tripped on it is not tried before that is good again.
    """

    min_acceptance: float | None = None
    max_tpot_ratio: float | None = None
    max_error_rate: float | None = None
    window_seconds: float = 300.0
    baseline_seconds: float = 3600.0
    min_samples: int = 20
    cooldown_seconds: float = 120.0
    good_windows: int = 3
    probe_share: float = 0.1
    baseline_share: float = 0.02
    tripped: Speculation = Speculation.OFF

    def __post_init__(self) -> None:
        for name in ("min_acceptance", "max_error_rate", "probe_share", "baseline_share"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise InvalidParameterError(name, f"must be from 0 to 1, not {value!r}")
        if self.probe_share == 0.0:
            raise InvalidParameterError("probe_share", "must be above 0, or a tripped route never comes back")
        if self.max_tpot_ratio is not None and not 1.0 <= self.max_tpot_ratio < math.inf:
            raise InvalidParameterError("max_tpot_ratio", f"must be at least 1, not {self.max_tpot_ratio!r}")
        for name in ("window_seconds", "baseline_seconds", "cooldown_seconds"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise InvalidParameterError(name, f"must be seconds above 0, not {getattr(self, name)!r}")
        for name in ("min_samples", "good_windows"):
            if getattr(self, name) < 1:
                raise InvalidParameterError(name, f"must be at least 1, not {getattr(self, name)!r}")
        if self.min_samples > 512:
            raise InvalidParameterError("min_samples", f"must be at most 512, not {self.min_samples!r}")
        if self.tripped is Speculation.ON:
            raise InvalidParameterError("tripped", "must be 'off' or 'shadow'")

    @property
    def watches(self) -> bool:
        """Whether anything can trip."""
        return (self.min_acceptance, self.max_tpot_ratio, self.max_error_rate) != (None, None, None)
