"""Sampling parameters, and the one definition of what they do to logits, used by both ends.

The order is the one that ``transformers.generate`` applies: logit bias, penalties, temperature, top_k, top_p, min_p.
Everything after the logits is computed in float64, whatever the weights are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .errors import InvalidParameterError, NonFiniteLogitsError

__all__ = ["GREEDY_TEMPERATURE", "SamplingParams", "TokenHistory", "greedy_token", "probabilities", "process_logits"]

GREEDY_TEMPERATURE = 1e-5
"""Below this temperature sampling is greedy: the limit, without the overflow."""

MAX_LOGIT_BIASES = 1024

_RANGES: dict[str, tuple[float, float, str]] = {
    "temperature": (0.0, 100.0, "a number from 0 (greedy) to 100"),
    "top_p": (0.0, 1.0, "a number above 0 and at most 1 (1 is off)"),
    "min_p": (0.0, 1.0, "a number from 0 (off) to 1"),
    "repetition_penalty": (0.0, 100.0, "a number above 0 and at most 100 (1 is off)"),
    "presence_penalty": (-2.0, 2.0, "a number from -2 to 2 (0 is off)"),
    "frequency_penalty": (-2.0, 2.0, "a number from -2 to 2 (0 is off)"),
}
_ABOVE_ZERO = frozenset({"top_p", "repetition_penalty"})
_LEAST_REPETITION_PENALTY = 1e-100  # less acts as this: no float32 divided by it overflows


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are drawn from the target.

    Attributes:
        temperature: 0 is greedy; logits are divided by it otherwise.
        top_k: keep the k best-scored tokens (ties with the k-th are kept); 0 is off.
        top_p: keep the fewest best-scored tokens whose probabilities add up to at least this; 1 is off.
        min_p: keep tokens at least this times as probable as the most probable one; 0 is off.
        repetition_penalty: divide positive and multiply negative logits of every token seen in prompt or answer
            (Keskar et al. 2019, as in transformers).
        presence_penalty, frequency_penalty: subtracted once, or once an occurrence, for tokens of the answer.
        logit_bias: pairs of token id and a number from -100 to 100 added to its logit.
        mode: the acceptance rule above temperature 0: ``coupled`` (shared noise) or ``rejection`` (min(1, p/q)).

    Raises:
        InvalidParameterError: naming the field that is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    mode: Literal["coupled", "rejection"] = "coupled"

    def __post_init__(self) -> None:
        for name, (low, high, what) in _RANGES.items():
            value = _real(name, getattr(self, name), what)
            if not low <= value <= high or (value == 0 and name in _ABOVE_ZERO):
                raise InvalidParameterError(name, f"must be {what}, not {value:g}")
            object.__setattr__(self, name, value)
        if isinstance(self.top_k, bool) or not isinstance(self.top_k, int) or not 0 <= self.top_k < 2**31:
            raise InvalidParameterError("top_k", f"must be a whole number, 0 (off) or more, not {self.top_k!r}")
        if self.mode not in ("coupled", "rejection"):
            raise InvalidParameterError("mode", f"must be 'coupled' or 'rejection', not {self.mode!r}")
        object.__setattr__(self, "logit_bias", _checked_biases(self.logit_bias))

    @property
    def greedy(self) -> bool:
        """Whether the best-scored token is always taken."""
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def by_rejection(self) -> bool:
        """Whether tokens are accepted by comparing p with q, so that drafts carry their q."""
        return self.mode == "rejection" and not self.greedy

    @property
    def penalized(self) -> bool:
        """Whether scores depend on tokens already in the sequence."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(item.name for item in fields(cls))


def _real(name: str, value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidParameterError(name, f"must be {what}, not {value!r}")
    number = _float(value)
    if not math.isfinite(number):
        shown = "NaN" if math.isnan(number) else "a number beyond all bounds"
        raise InvalidParameterError(name, f"must be {what}, not {shown}")
    return number


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an int beyond the range of floats
        return math.inf


def _checked_biases(biases: Iterable[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    pairs = []
    try:
        for token, bias in biases:
            pairs.append((token, _real("logit_bias", bias, "pairs of token id and a number from -100 to 100")))
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidParameterError):
            raise
        raise InvalidParameterError("logit_bias", "must be pairs of token id and number") from None
    for token, bias in pairs:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
            raise InvalidParameterError("logit_bias", f"has a token id out of range: {token!r}")
        if not -100 <= bias <= 100:
            raise InvalidParameterError("logit_bias", f"must lie between -100 and 100, not {bias:g}")
    if len(pairs) > MAX_LOGIT_BIASES:
        raise InvalidParameterError("logit_bias", f"has {len(pairs)} entries; at most {MAX_LOGIT_BIASES} are taken")
    if len({token for token, _ in pairs}) != len(pairs):
        raise InvalidParameterError("logit_bias", "names a token id twice")
    return tuple(sorted(pairs))


class TokenHistory:
    """Which tokens the sequence holds, for the penalties; the answer's tokens can be taken back one by one."""

    def __init__(self, prompt: Iterable[int] = (), answer: Iterable[int] = ()) -> None:
        self._prompt = frozenset(prompt)
        self._answer: Counter[int] = Counter(answer)

    def append(self, token: int) -> None:
        """Add one token of the answer."""
        self._answer[token] += 1

    def remove(self, token: int) -> None:
        """Take back one occurrence of ``token`` from the answer."""
        if self._answer[token] <= 1:
            del self._answer[token]
        else:
            self._answer[token] -= 1

    def penalize(self, scores: NDArray[np.float64], params: SamplingParams) -> None:
        """Apply the penalties in place to ``scores`` [vocabulary_size]."""
        if params.repetition_penalty != 1:
            seen = _ids(self._prompt | self._answer.keys(), len(scores))
            values = scores[seen]
            penalty = max(params.repetition_penalty, _LEAST_REPETITION_PENALTY)
            scores[seen] = np.where(values < 0, values * penalty, values / penalty)
        if (params.presence_penalty or params.frequency_penalty) and self._answer:
            used = _ids(self._answer.keys(), len(scores))
            counts = np.array([self._answer[int(token)] for token in used], dtype=np.float64)
            scores[used] -= params.presence_penalty + params.frequency_penalty * counts


def _ids(tokens: Iterable[int], limit: int) -> NDArray[np.int64]:
    return np.array(sorted(token for token in tokens if token < limit), dtype=np.int64)


def greedy_token(logits: NDArray[np.floating], params: SamplingParams, history: TokenHistory) -> int:
    """The best-scored token, the lowest id among equals, of ``logits`` [vocabulary_size]."""
    scores = logits if not (params.penalized or params.logit_bias) else process_logits(logits, params, history)
    token = int(scores.argmax())  # NaN counts as the greatest, so it cannot hide behind another token
    _require_finite(scores[token])
    return token


def process_logits(logits: NDArray[np.floating], params: SamplingParams, history: TokenHistory) -> NDArray[np.float64]:
    """Turn a row of logits [vocabulary_size] into scores: log-probabilities up to a constant, -inf where cut off.

    Raises:
        NonFiniteLogitsError: the row holds NaN or +inf, or nothing above -inf.
    """
    _require_finite(logits.max())
    scores = logits.astype(np.float64)
    for token, bias in params.logit_bias:
        if token < len(scores):
            scores[token] += bias
    if params.penalized:
        history.penalize(scores, params)
    if params.greedy:
        return scores
    scores -= scores.max()  # first, so that a tiny temperature cannot overflow
    scores /= params.temperature
    if 0 < params.top_k < len(scores):
        kth = np.partition(scores, -params.top_k)[-params.top_k]
        scores[scores < kth] = -np.inf
    if params.top_p < 1:
        _keep_top_p(scores, params.top_p)
    if params.min_p > 0:
        scores[scores < math.log(params.min_p)] = -np.inf
    return scores


def _require_finite(best: np.floating) -> None:
    if not np.isfinite(best):
        raise NonFiniteLogitsError("the model produced no finite logits; check its weights and dtype")


def _keep_top_p(scores: NDArray[np.float64], top_p: float) -> None:
    """Cut off in place what lies outside the nucleus (Holtzman et al. 2020); equals rank by token id.

    ``scores`` are at most 0. Sorting a whole vocabulary costs milliseconds, so only the tokens near the top are
    sorted, and more of them only when these do not carry enough probability.
    """
    total = np.exp(scores).sum()
    for depth in (8.0, 16.0, np.inf):
        near = np.flatnonzero(scores >= -depth)
        order = near[np.argsort(-scores[near], kind="stable")]
        mass = np.cumsum(np.exp(scores[order]))
        if mass[-1] >= top_p * total or depth == np.inf:
            break
    kept = order[: int(np.searchsorted(mass, top_p * total)) + 1]
    values = scores[kept]
    scores.fill(-np.inf)
    scores[kept] = values


def probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Softmax of processed scores [vocabulary_size], in float64; sums to 1."""
    weights: NDArray[np.float64] = np.exp(scores - scores.max())
    weights /= weights.sum()
    return weights
