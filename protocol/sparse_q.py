"""SparseQ: the draft distribution of rejection mode, small enough to send.

The client quantizes first and samples then, from exactly what it sends. So the verifier's q is the client's q to the
last bit, and min(1, p/q) loses nothing to rounding; what the quantization costs is acceptance, never exactness.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidParameterError, NonFiniteLogitsError

__all__ = ["MAX_SUPPORT", "SparseQ"]

MAX_SUPPORT = 64
"""Most token ids that one distribution may name."""

_MAX_WEIGHT = 255


@dataclass(frozen=True, slots=True)
class SparseQ:
    """q(ids[i]) = weights[i] / sum(weights), and 0 elsewhere.

    Attributes:
        ids: token ids, strictly ascending, 1 to MAX_SUPPORT of them.
        weights: 1 to 255 each, one for each id.
    """

    ids: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.ids) <= MAX_SUPPORT:
            raise InvalidParameterError("sparse_q.ids", f"must be 1 to {MAX_SUPPORT} token ids, not {len(self.ids)}")
        if len(self.weights) != len(self.ids):
            raise InvalidParameterError("sparse_q.weights", "must be one for each token id")
        if not {type(value) for value in (*self.ids, *self.weights)} <= {int}:
            raise InvalidParameterError("sparse_q", "must hold nothing but ints")
        if any(left >= right for left, right in zip(self.ids, self.ids[1:], strict=False)):
            raise InvalidParameterError("sparse_q.ids", "must be strictly ascending")
        if self.ids[0] < 0 or self.ids[-1] >= 1 << 31:
            raise InvalidParameterError("sparse_q.ids", "must be from 0 to 2147483647")
        if min(self.weights) < 1 or max(self.weights) > _MAX_WEIGHT:
            raise InvalidParameterError("sparse_q.weights", f"must be from 1 to {_MAX_WEIGHT}")

    @classmethod
    def from_scores(cls, scores: NDArray[np.floating], top_k: int = 8) -> SparseQ:
        """Quantize the softmax of the ``top_k`` highest scores; the highest gets weight 255, zeros are dropped.

        Args:
            scores: [vocabulary_size], processed logits or log-probabilities; -inf where a token cannot be drawn.
            top_k: 1 to MAX_SUPPORT.

        Raises:
            NonFiniteLogitsError: a NaN, a +inf, or no finite score.
        """
        if not 1 <= top_k <= MAX_SUPPORT:
            raise InvalidParameterError("top_k", f"must be from 1 to {MAX_SUPPORT}, not {top_k}")
        count = min(top_k, scores.shape[0])
        best = np.argpartition(scores, scores.shape[0] - count)[-count:]  # NaN sorts last, so it is among these
        values = scores[best].astype(np.float64)
        highest = values.max()
        if not np.isfinite(highest):
            raise NonFiniteLogitsError("the draft model produced scores that are not finite; export it again")
        weights = np.rint(_MAX_WEIGHT * np.exp(values - highest)).astype(np.int64)
        kept = sorted((int(token), int(weight)) for token, weight in zip(best, weights, strict=True) if weight)
        return cls(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))

    @property
    def total(self) -> int:
        """The sum of the weights."""
        return sum(self.weights)

    def probability(self, token: int) -> float:
        """q(token)."""
        index = bisect_left(self.ids, token)
        if index == len(self.ids) or self.ids[index] != token:
            return 0.0
        return self.weights[index] / self.total

    def dense(self, vocabulary_size: int) -> NDArray[np.float64]:
        """q as an array [vocabulary_size]."""
        if self.ids[-1] >= vocabulary_size:
            raise InvalidParameterError("sparse_q.ids", f"{self.ids[-1]} is outside the {vocabulary_size} token ids")
        q = np.zeros(vocabulary_size, dtype=np.float64)
        q[list(self.ids)] = np.asarray(self.weights, dtype=np.float64) / self.total
        return q

    def sample(self, uniform: float) -> int:
        """The token that inverse CDF in the order of ``ids`` gives for ``uniform`` in [0, 1)."""
        if not 0.0 <= uniform < 1.0:
            raise InvalidParameterError("uniform", f"must be in [0, 1), not {uniform}")
        cumulative = list(accumulate(self.weights))
        return self.ids[min(bisect_right(cumulative, uniform * cumulative[-1]), len(self.ids) - 1)]
