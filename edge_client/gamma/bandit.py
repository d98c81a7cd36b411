"""A bandit over look-aheads: tries each, prefers what brought most tokens a second lately."""

from __future__ import annotations

import math

from .controller import Round
from .fixed import LookAheadController

__all__ = ["BanditController"]

_ARMS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class BanditController(LookAheadController):
    """Discounted UCB (Garivier and Moulines 2011) over a ladder of look-aheads.

    The reward is tokens a second over an episode of some commits, relative to the best seen. The past is discounted,
    so that it follows a network that changes.

    Args:
        most: no look-ahead above this is tried.
    """

    _EPISODE = 8
    _DISCOUNT = 0.97
    _EXPLORATION = 0.25

    def __init__(self, most: int) -> None:
        self._arms = [arm for arm in _ARMS if arm <= most] or [most]
        self._pulls = [0.0] * len(self._arms)
        self._rewards = [0.0] * len(self._arms)
        self._arm = len(self._arms) // 2
        self._began: float | None = None
        self._commits = 0
        self._tokens = 0
        super().__init__(self._arms[self._arm])

    def committed(self, round_: Round) -> None:
        """See :class:`Controller`."""
        if self._began is None:  # the first commit brings the prompt's time with it
            self._began = round_.now
            return
        self._commits += 1
        self._tokens += round_.tokens
        if self._commits < self._EPISODE or round_.now <= self._began:
            return
        self._learn(self._tokens / (round_.now - self._began))
        self._began, self._commits, self._tokens = round_.now, 0, 0
        self._arm = self._choose()
        self.look_ahead = self._arms[self._arm]

    def _learn(self, rate: float) -> None:
        self._pulls = [self._DISCOUNT * pulls for pulls in self._pulls]
        self._rewards = [self._DISCOUNT * reward for reward in self._rewards]
        self._pulls[self._arm] += 1.0
        self._rewards[self._arm] += rate

    def _choose(self) -> int:
        means = [
            reward / pulls if pulls > 1e-3 else None for reward, pulls in zip(self._rewards, self._pulls, strict=True)
        ]
        best = max((mean for mean in means if mean is not None), default=1.0)
        total = math.log(max(sum(self._pulls), math.e))

        def bound(index: int) -> float:
            mean = means[index]
            if mean is None:
                return math.inf
            return mean / best + self._EXPLORATION * math.sqrt(total / self._pulls[index])

        return max(range(len(self._arms)), key=bound)
