"""The three acceptance rules, and the walk over a block that applies one of them.

Each rule answers one question: *which token does the target commit at this position?* It may look at what the draft
proposed there, but its answer is distributed exactly as the target alone would draw it. The proposal is accepted
when it is the answer.

Terms: **accepted** tokens were proposed and committed; the **recovered** token is committed where a proposal failed;
the **bonus** token is committed after the last proposal when all passed. ``p`` is the target's distribution after
sampling parameters, ``q`` the draft's; the **residual** is norm(max(0, p - q)), and p itself where that has no mass
(p = q up to rounding).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import NonFiniteLogitsError
from .noise import Domain, coupled_choice, uniform
from .sampling import SamplingParams, TokenHistory, greedy_token, probabilities, process_logits
from .sparse_q import SparseQ

__all__ = ["Proposal", "Verdict", "commit_coupled", "commit_greedy", "commit_rejection", "rule_for", "verify_block"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """One drafted token, and in rejection mode the distribution it was drawn from."""

    token: int
    q: SparseQ | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a block committed: ``tokens`` in order, of which the first ``accepted`` were proposed and agreed."""

    tokens: tuple[int, ...]
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What a rule draws with: the stream's parameters, history and seed, and the position of the token."""

    params: SamplingParams
    history: TokenHistory
    seed: int
    position: int


Rule = Callable[[NDArray[np.floating], Proposal | None, Draw], int]


def commit_greedy(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
    """The target's argmax, whatever was proposed. ``logits`` [vocabulary_size]."""
    del proposal
    return greedy_token(logits, draw.params, draw.history)


def commit_coupled(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
    """A draw from p with the stream's shared noise, whatever was proposed. ``logits`` [vocabulary_size].

    A function of seed and target alone: the same text with a good draft, a bad one, or none.
    """
    del proposal
    return coupled_choice(process_logits(logits, draw.params, draw.history), draw.seed, draw.position)


def commit_rejection(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
    """Accept with probability min(1, p/q), else draw from the residual; draw from p where nothing was proposed.

    Leviathan, Kalman, Matias 2023 and Chen et al. 2023. A proposal that carries no q counts as certain (one-hot q).
    ``logits`` [vocabulary_size].
    """
    p = probabilities(process_logits(logits, draw.params, draw.history))
    if proposal is None:
        return _inverse_cdf(p, uniform(draw.seed, draw.position, Domain.BONUS))
    q = proposal.q or SparseQ(ids=(proposal.token,), weights=(1,))
    if uniform(draw.seed, draw.position, Domain.ACCEPT) * q.probability(proposal.token) < p[proposal.token]:
        return proposal.token
    residual = p.copy()
    residual[list(q.ids)] -= [q.probability(token) for token in q.ids]
    np.maximum(residual, 0.0, out=residual)
    if not residual.any():
        residual = p
    return _inverse_cdf(residual, uniform(draw.seed, draw.position, Domain.RESIDUAL))


def _inverse_cdf(weights: NDArray[np.float64], u: float) -> int:
    """The first token at which the running sum of ``weights`` [vocabulary_size] exceeds ``u`` of their total."""
    running = np.cumsum(weights)
    token = int(np.searchsorted(running, u * running[-1], side="right"))
    return min(token, int(np.flatnonzero(weights)[-1]))


def rule_for(params: SamplingParams) -> Rule:
    """The rule that these sampling parameters ask for."""
    if params.greedy:
        return commit_greedy
    return commit_coupled if params.mode == "coupled" else commit_rejection


def verify_block(
    rows: NDArray[np.floating],
    proposals: Sequence[Proposal],
    *,
    params: SamplingParams,
    history: TokenHistory,
    seed: int,
    position: int,
    stop_ids: Collection[int] = (),
    budget: int,
    withhold_bonus: bool = False,
) -> Verdict:
    """Walk a block and commit tokens until the first disagreement, a stop id or the budget.

    Args:
        rows: target logits [len(proposals) + 1, vocabulary_size]; row i scores the token at ``position + i``.
        proposals: the drafted tokens at ``position``, ``position + 1``, …
        history: the sequence so far; committed tokens are added to it.
        budget: at most so many tokens are committed, at least 1.
        withhold_bonus: do not draw the token after the last proposal, because more of the path is on its way.

    Returns:
        At least one token, unless the bonus is withheld and nothing was proposed. A later row without finite logits
        ends the walk without a token of its own.

    Raises:
        NonFiniteLogitsError: the first row has none.
    """
    rule = rule_for(params)
    tokens: list[int] = []
    accepted = 0
    for offset in range(len(proposals) + (not withhold_bonus)):
        proposal = proposals[offset] if offset < len(proposals) else None
        draw = Draw(params=params, history=history, seed=seed, position=position + offset)
        try:
            token = rule(rows[offset], proposal, draw)
        except NonFiniteLogitsError:
            if not tokens:
                raise
            break  # what was committed before the bad row stands; the next block begins with it
        tokens.append(token)
        history.append(token)
        agreed = proposal is not None and token == proposal.token
        accepted += agreed
        if not agreed or token in stop_ids or len(tokens) == budget:
            break
    return Verdict(tuple(tokens), accepted)
