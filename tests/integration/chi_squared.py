"""Pearson's test of observed token counts against an exact distribution."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

__all__ = ["chi_squared_tail", "fit", "joint_distribution", "transition_fit"]

_LEAST_EXPECTED = 5.0
"""Cells that expect fewer are merged: below it the statistic is not chi-squared."""


def fit(observed: Mapping[Hashable, int], expected: Mapping[Hashable, float]) -> float:
    """p-value of ``observed`` counts, given probabilities ``expected`` of the cells (others are impossible).

    An observation in an impossible cell gives 0.
    """
    statistic, freedom = _statistic(observed, expected)
    return chi_squared_tail(statistic, freedom)


def transition_fit(
    sequences: Iterable[Sequence[int]],
    *,
    prompt: Sequence[int],
    order: int,
    distribution: Callable[[tuple[int, ...]], Mapping[int, float]],
) -> float:
    """p-value of the tokens of ``sequences`` given the ``order`` tokens before each, summed over contexts."""
    counts: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for sequence in sequences:
        tokens = [*prompt, *sequence]
        for position in range(len(prompt), len(tokens)):
            counts[tuple(tokens[position - order : position])][tokens[position]] += 1
    parts = [_statistic(observed, distribution(context)) for context, observed in counts.items()]
    return chi_squared_tail(sum(part[0] for part in parts), sum(part[1] for part in parts))


def joint_distribution(
    prompt: Sequence[int], length: int, distribution: Callable[[tuple[int, ...]], Mapping[int, float]]
) -> dict[tuple[int, ...], float]:
    """Probability of each sequence of ``length`` tokens after ``prompt``."""
    joint: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        joint = {
            (*tokens, token): mass * p
            for tokens, mass in joint.items()
            for token, p in distribution((*prompt, *tokens)).items()
            if p > 0
        }
    return joint


def _statistic(observed: Mapping[Hashable, int], expected: Mapping[Hashable, float]) -> tuple[float, int]:
    """Pearson's statistic and its degrees of freedom."""
    total = sum(observed.values())
    if any(not expected.get(cell) for cell in observed):
        return math.inf, 1
    cells, small_observed, small_expected = [], 0, 0.0
    for cell, p in expected.items():
        if p * total >= _LEAST_EXPECTED:
            cells.append((observed.get(cell, 0), p * total))
        else:
            small_observed, small_expected = small_observed + observed.get(cell, 0), small_expected + p * total
    if small_expected >= _LEAST_EXPECTED or not cells:
        cells.append((small_observed, small_expected))
    elif small_expected > 0:  # too little for a cell of its own: it joins the smallest
        smallest = min(range(len(cells)), key=lambda index: cells[index][1])
        seen, mass = cells[smallest]
        cells[smallest] = (seen + small_observed, mass + small_expected)
    return sum((seen - mass) ** 2 / mass for seen, mass in cells), len(cells) - 1


def chi_squared_tail(statistic: float, freedom: int) -> float:
    """P(chi-squared with ``freedom`` degrees exceeds ``statistic``): the regularized upper incomplete gamma."""
    if freedom == 0:
        return 1.0
    if math.isinf(statistic):
        return 0.0
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:  # series of the lower one
        term = total = 1 / a
        n = a
        while term > total * 1e-16:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1 - scale * total)
    # Lentz's continued fraction of the upper one
    b = x + 1 - a
    c, d = 1e300, 1 / b
    h = d
    for i in range(1, 10_000):
        factor = -i * (i - a)
        b += 2
        d = 1 / (factor * d + b or 1e-300)
        c = b + factor / c or 1e-300
        h *= d * c
        if abs(d * c - 1) < 1e-15:
            break
    return scale * h
