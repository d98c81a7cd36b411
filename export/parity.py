"""Comparing an exported graph with the torch model it was made from, and with itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import NonFiniteLogitsError, ParityError
from .graph_runner import GraphRunner
from .reference import Continuation, Reference

__all__ = [
    "BLOCKS",
    "EXACT",
    "PASTS",
    "ROUNDED",
    "Comparison",
    "check_cache",
    "compare",
    "fits_beyond_window",
    "top_ids",
]

PASTS = (0, 1, 7, 500)
BLOCKS = (1, 2, 9)
_PADDING = 5
EXACT = 2e-3  # of the largest logit: what the order of fp32 sums may change
# Quantized kernels round activations to 8 bits, so that a last-bit difference of a sum can become a whole step of a
# later layer. A cache that is wrong moves logits by their own size.
ROUNDED = 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """``agreement``: share of ``positions`` at which both rank the same token first; ``difference``: largest of all
    absolute logit differences; ``top_ids``: the graph's first choice at each position, one array a prompt."""

    agreement: float
    difference: float
    positions: int
    top_ids: list[NDArray[np.int64]]


def compare(runner: GraphRunner, continuations: Sequence[Continuation], *, vocabulary: int) -> Comparison:
    """Run the graph over the torch model's own text and compare its next-token choices (teacher forcing).

    Raises:
        NonFiniteLogitsError: the graph says NaN.
    """
    tops, equal, positions, difference = [], 0, 0, 0.0
    for item in continuations:
        logits = _after(runner, item)[:, :vocabulary]
        top = logits.argmax(axis=-1)
        tops.append(top)
        equal += int((top == item.top_ids).sum())
        positions += len(top)
        if item.logits is not None:
            difference = max(difference, float(np.abs(logits - item.logits[:, :vocabulary]).max()))
    return Comparison(equal / positions, difference, positions, tops)


def top_ids(runner: GraphRunner, item: Continuation, *, vocabulary: int) -> NDArray[np.int64]:
    """The graph's first choice at each position of one continuation."""
    top: NDArray[np.int64] = _after(runner, item)[:, :vocabulary].argmax(axis=-1)
    return top


def check_cache(runner: GraphRunner, ids: Sequence[int], *, capacity: int, tolerance: float) -> None:
    """Decoding with a cache equals recomputation, for every past and block that fits; so does a rollback, and left
    padding where the graph takes it.

    Args:
        ids: any text; it is repeated to the length needed.
        capacity: tokens that ``runner`` can hold.
        tolerance: difference allowed, as a share of the largest logit: :data:`EXACT` or :data:`ROUNDED`.

    Raises:
        ParityError: a row of logits differs.
    """
    pasts = [past for past in PASTS if past + max(BLOCKS) <= capacity]
    text = (list(ids) * (1 + (max(pasts) + max(BLOCKS)) // len(ids)))[: max(pasts) + max(BLOCKS)]
    runner.reset()
    whole = _checked(runner.feed(text))
    allowed = tolerance * max(1.0, float(np.abs(whole).max()))
    for past in pasts:
        for block in BLOCKS:
            if runner.length > past:
                runner.rollback(past)
            elif past > runner.length:
                runner.feed(text[runner.length : past])
            rows = runner.feed(text[past : past + block])
            _demand_equal(rows, whole[past : past + block], allowed, f"{block} tokens after {past} cached ones")
    if runner.takes_padding:
        short = text[: max(BLOCKS)]
        _demand_equal(runner.padded(short, _PADDING), whole[: len(short)], allowed, "a left-padded row")


def fits_beyond_window(runner: GraphRunner, reference: Reference, *, vocabulary: int) -> bool:
    """Whether the graph equals the torch model beyond its sliding window, in one pass and token by token."""
    if reference.long_logits is None:
        return False
    wanted = reference.long_logits[:, :vocabulary]
    scale = max(1.0, float(np.abs(wanted).max()))
    rows = len(wanted)
    runner.reset()
    whole = runner.feed(reference.long_ids)[-rows:, :vocabulary]
    runner.rollback(len(reference.long_ids) - rows)
    steps = np.concatenate([runner.feed([token]) for token in reference.long_ids[-rows:]])[:, :vocabulary]
    return all(float(np.abs(found - wanted).max()) <= EXACT * scale for found in (whole, steps))


def _after(runner: GraphRunner, item: Continuation) -> NDArray[np.float32]:
    """Logits [continuation, logits_size] that predict each token of the continuation."""
    runner.reset()
    return _checked(runner.feed(item.token_ids[:-1])[item.prompt_length - 1 :])


def _checked(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(logits).all():
        raise NonFiniteLogitsError(
            "the exported graph's logits are NaN or infinite; no draft can be made of this model"
        )
    return logits


def _demand_equal(found: NDArray[np.float32], wanted: NDArray[np.float32], allowed: float, what: str) -> None:
    difference = float(np.abs(found - wanted).max())
    if not difference <= allowed:
        raise ParityError(
            f"the exported graph is wrong: {what} give logits {difference:.2g} away from recomputing them; "
            "try the other --builder"
        )
