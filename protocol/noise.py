"""Shared noise: the same numbers on both ends for the same seed, position and token, with nothing sent.

The generator is counter-based: SplitMix64 (Steele, Lea, Flood 2014) keyed by seed, domain and position, so any token's
noise is found without drawing the others'. Logarithms are computed by a fixed sequence of IEEE 754 double operations
(no fused multiply-add), because libraries' ``log`` differ in the last bit from one platform to the next.
``docs/protocol.md`` is normative and lists test vectors.
"""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["GUMBEL_MAX", "GUMBEL_MIN", "Domain", "coupled_choice", "coupled_share", "gumbel", "hash_bits", "uniform"]

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
_SERIES = tuple(1.0 / (2 * n + 1) for n in range(12))

GUMBEL_MIN = -3.6038
"""No noise is below this: -ln(-ln(2**-53)), rounded down."""
GUMBEL_MAX = 36.7369
"""No noise is above this: -ln(-ln(1 - 2**-53)), rounded up."""

_NEAR = 12.0
_SLACK = 1e-6
_PIECE = 8192  # tokens whose bits fit a core's own cache


class Domain(IntEnum):
    """What a number is drawn for; draws in different domains are independent."""

    COUPLED = 0
    ACCEPT = 1
    RESIDUAL = 2
    BONUS = 3
    DRAFT = 4


def _mix(value: int) -> int:
    value = ((value ^ (value >> 30)) * _MIX_1) & _MASK
    value = ((value ^ (value >> 27)) * _MIX_2) & _MASK
    return value ^ (value >> 31)


def _key(seed: int, position: int, domain: int) -> int:
    outer = _mix((seed + _GOLDEN * (domain + 1)) & _MASK)
    return _mix((outer + _GOLDEN * (position + 1)) & _MASK)  # a sum: seed and position must not be interchangeable


def hash_bits(seed: int, position: int, tokens: NDArray[np.int64], domain: int = Domain.COUPLED) -> NDArray[np.uint64]:
    """64 bits for each of ``tokens`` [n]: SplitMix64's output number ``token + 1`` from the key of seed and position.

    Args:
        seed: the stream's seed, 0 to 2**64 - 1.
        position: absolute position of the token to be drawn.
    """
    bits = tokens.astype(np.uint64)
    bits += np.uint64(1)
    bits *= np.uint64(_GOLDEN)
    bits += np.uint64(_key(seed, position, domain))
    _scramble(bits)
    return bits


def _scramble(bits: NDArray[np.uint64]) -> None:
    """SplitMix64's output function, in place."""
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        bits ^= bits >> np.uint64(shift)
        bits *= np.uint64(factor)
    bits ^= bits >> np.uint64(31)


@lru_cache(maxsize=4)
def _counters(count: int) -> NDArray[np.uint64]:
    """(token + 1) times the golden constant for the first ``count`` tokens: the same for every key."""
    counters = np.arange(1, count + 1, dtype=np.uint64)
    counters *= np.uint64(_GOLDEN)
    counters.flags.writeable = False
    return counters


def uniform(seed: int, position: int, domain: int) -> float:
    """One number strictly between 0 and 1, for draws that need no token: (2 k + 1) / 2**53 with 52 bits k."""
    bits = _mix((_key(seed, position, domain) + _GOLDEN) & _MASK)
    return (2 * (bits >> 12) + 1) * 2.0**-53


def gumbel(seed: int, position: int, tokens: NDArray[np.int64], domain: int = Domain.COUPLED) -> NDArray[np.float64]:
    """Standard Gumbel noise -ln(-ln u) of each of ``tokens`` [n], bit-identical everywhere."""
    return -_ln(-_ln(_unit(hash_bits(seed, position, tokens, domain))))


def _unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    halves: NDArray[np.float64] = (bits >> np.uint64(12)).astype(np.float64)
    halves *= 2.0
    halves += 1.0
    halves *= 2.0**-53
    return halves


def _ln(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """ln x as e ln 2 + 2 artanh((m - 1) / (m + 1)), x = m 2**e with m from sqrt(1/2) to sqrt(2)."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, _SERIES[-1])
    for coefficient in reversed(_SERIES[:-1]):
        series = series * square + coefficient
    result: NDArray[np.float64] = exponent * _LN2 + (2.0 * s) * series
    return result


def coupled_choice(
    scores: NDArray[np.float64], seed: int, position: int, *, tokens: NDArray[np.int64] | None = None
) -> int:
    """The token with the greatest score + noise: a draw from softmax(scores), equal on both ends.

    Gumbel-max (Gumbel 1954) with common noise is the coupling without communication of Daliri, Musco and Suresh
    (2024). Equals, which are practically impossible, rank by token id. Noise is bounded, and far below the top it must
    be rare to win, so most tokens are dismissed by comparing integers.

    Args:
        scores: [n] log-probabilities up to a constant, -inf where cut off.
        tokens: [n] the token ids that the scores belong to, ascending; by default 0 to n - 1.
    """
    top = float(scores.max())
    near = np.flatnonzero(scores >= top - _NEAR)
    totals = scores[near] + _gumbel_fast(seed, position, _ids(tokens, near))
    best = float(totals.max())
    far = _lucky(scores, tokens, seed, position, below=top - _NEAR, best=best)
    if len(far):
        near = np.concatenate([near, far])
        totals = np.concatenate([totals, scores[far] + _gumbel_fast(seed, position, _ids(tokens, far))])
        best = float(totals.max())
    close = np.sort(near[totals >= best - _SLACK])
    if len(close) > 1:
        close = close[[(scores[close] + gumbel(seed, position, _ids(tokens, close))).argmax()]]
    return int(_ids(tokens, close)[0])


def coupled_share(
    scores: NDArray[np.float64], seed: int, position: int, *, tokens: NDArray[np.int64] | None = None
) -> float:
    """How clear the choice of :func:`coupled_choice` is, as a probability: 1 where nothing else came near.

    The winner's share of softmax(scores + noise). Another model with somewhat different scores draws the same token
    about so often: on real text it says more than the token's probability, as a rare token may win by far.
    """
    near = np.flatnonzero(scores >= float(scores.max()) - _NEAR)
    totals = scores[near] + _gumbel_fast(seed, position, _ids(tokens, near))
    return float(1.0 / np.exp(totals - totals.max()).sum())


def _ids(tokens: NDArray[np.int64] | None, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return indices if tokens is None else tokens[indices]


def _gumbel_fast(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Noise by the platform's own logarithm: good to 1e-9, which decides all but near ties."""
    noise: NDArray[np.float64] = -np.log(-np.log(_unit(hash_bits(seed, position, tokens))))
    return noise


def _lucky(
    scores: NDArray[np.float64],
    tokens: NDArray[np.int64] | None,
    seed: int,
    position: int,
    *,
    below: float,
    best: float,
) -> NDArray[np.int64]:
    """Indices of scores under ``below`` whose noise is great enough to reach ``best``, give or take a little."""
    bound = np.uint64(max(0, int(np.exp(-np.exp(-(best - below - _SLACK))) * 2.0**52) - 1) << 12)
    key = np.uint64(_key(seed, position, Domain.COUPLED))
    if tokens is None:
        counters = _counters(len(scores))
    else:
        counters = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
    found = []
    for start in range(0, len(scores), _PIECE):
        bits = counters[start : start + _PIECE] + key
        _scramble(bits)
        found.append(start + np.flatnonzero(bits >= bound))
    indices = np.concatenate(found)
    kept: NDArray[np.int64] = indices[(scores[indices] < below) & (scores[indices] > best - GUMBEL_MAX)]
    return kept
