"""From the draft's logits to one proposal, drawn so that the verifier is most likely to agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..protocol.acceptance import Proposal
from ..protocol.clock import confidence_byte
from ..protocol.noise import Domain, coupled_choice, coupled_share, uniform
from ..protocol.sampling import SamplingParams, TokenHistory, greedy_token, process_logits
from ..protocol.sparse_q import SparseQ

__all__ = ["Proposer"]

_DEPTH = 12.0
"""Tokens less probable than the best by this many nats take no part in a coupled draw on the device."""

_SUPPORT = 8
"""Tokens in the sparse q of rejection mode."""


class Proposer:
    """Draws proposals for one stream.

    Args:
        params, seed: the stream's own, as the verifier has them.
        prompt_length: where the answer starts in the sequence, for penalties.
    """

    def __init__(self, params: SamplingParams, *, seed: int, prompt_length: int) -> None:
        self._params = params
        self._seed = seed
        self._prompt_length = prompt_length

    def propose(self, logits: NDArray[np.float32], tokens: Sequence[int]) -> tuple[Proposal, int]:
        """Draw the token that follows ``tokens``.

        Args:
            logits: the draft's, [vocabulary_size].
            tokens: the whole sequence that the logits follow.

        Returns:
            The proposal, and its confidence byte.
        """
        params, position = self._params, len(tokens)
        history = self._history(tokens)
        if params.greedy:
            token = greedy_token(logits, params, history)
            return Proposal(token), _confidence(logits, token)
        if params.mode == "coupled":
            return self._propose_coupled(logits, history, position)
        scores = process_logits(logits, params, history)
        q = SparseQ.from_scores(scores, _SUPPORT)
        token = q.sample(uniform(self._seed, position, Domain.DRAFT))
        return Proposal(token, q), confidence_byte(q.probability(token))

    def _propose_coupled(
        self, logits: NDArray[np.float32], history: TokenHistory, position: int
    ) -> tuple[Proposal, int]:
        """Draw among the tokens near the top alone: noise for a whole vocabulary costs more than it brings."""
        params = self._params
        near = None
        if not (params.penalized or params.logit_bias):
            near = np.flatnonzero(~(logits < logits.max() - _DEPTH * params.temperature))  # NaN stays, to be refused
            logits = logits[near]
        scores = process_logits(logits, params, history)
        token = coupled_choice(scores, self._seed, position, tokens=near)
        return Proposal(token), confidence_byte(coupled_share(scores, self._seed, position, tokens=near))

    def _history(self, tokens: Sequence[int]) -> TokenHistory:
        if not self._params.penalized:
            return TokenHistory()
        return TokenHistory(tokens[: self._prompt_length], tokens[self._prompt_length :])


def _confidence(logits: NDArray[np.float32], token: int) -> int:
    """The token's probability under the draft, as a byte. A hint for scheduling; exactness does not rest on it."""
    with np.errstate(over="ignore"):  # logits at the edge of float32: their difference counts as the greatest there is
        above = logits - logits[token]
    return confidence_byte(float(1 / np.exp(np.minimum(above, 80)).sum(dtype=np.float64)))
