"""The check at load: the ragged path must give what the model gives by itself, or the model is refused."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...protocol.errors import UnsupportedModelError
from .ragged_attention import ATTENTION_NAME
from .target import Block, OutOfKvMemoryError, Target

__all__ = ["check_against_plain"]

_TOLERANCE = {torch.float32: 2e-4}
_HALF_TOLERANCE = 0.1
"""Error allowed, root mean square, relative to the spread of the logits. Attention gone wrong shows as 0.01 in tiny
random models, which are tested in float32, and as 0.5 and more in trained ones; rounding of bfloat16 as 0.02."""

_TOKENS = 6


def check_against_plain(target: Target, model: Any, name: str) -> None:
    """Compare two interleaved streams, one of them rolled back, with transformers' own eager attention and cache.

    Args:
        target: with no stream open.
        model: the model inside it.
        name: for the message.

    Raises:
        UnsupportedModelError: they differ, or the model cannot run either way.
    """
    size = target.info.vocabulary_size
    prompts = np.random.default_rng(7).integers(0, size, (2, _TOKENS))
    try:
        expected = _plain(model, prompts)[:, :, :size]
        actual = _ragged(target, prompts.tolist())
    except OutOfKvMemoryError as error:
        raise UnsupportedModelError(f"{name}: leaves no memory for keys and values; free some") from error
    except Exception as error:  # a model's own code may raise anything
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UnsupportedModelError(f"{name}: cannot be run in ragged batches: {reason}") from error
    spread = float(expected.std()) or 1.0
    error_size = float(np.sqrt(np.mean((actual - expected) ** 2, axis=-1)).max()) / spread
    if not error_size <= _TOLERANCE.get(model.dtype, _HALF_TOLERANCE):  # NaN is refused too
        raise UnsupportedModelError(
            f"{name}: {type(model).__name__} in ragged batches differs from plain transformers (relative error "
            f"{error_size:.2g}), so its output would not be exact; use another model"
        )


def _plain(model: Any, prompts: NDArray[np.int64]) -> NDArray[np.float32]:
    """Logits [2, tokens, logits_size] by eager attention."""
    model.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(prompts).to(model.device)).logits
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    result: NDArray[np.float32] = logits.float().cpu().numpy()
    return result


def _ragged(target: Target, prompts: list[list[int]]) -> NDArray[np.float32]:
    """The same in two steps with a rollback between them."""
    first, second = prompts
    with ExitStack() as opened:
        for stream in (1, 2):
            target.open(stream, _TOKENS)
            opened.callback(target.close, stream)
        _, begun = target.step([Block(1, 0, first[:4], rows=1), Block(2, 0, second[:3], rows=3)])
        target.rollback(1, 2)
        head, rest = target.step([Block(1, 2, first[2:], rows=4), Block(2, 3, second[3:], rows=3)])
        target.rollback(1, 0)
        (start,) = target.step([Block(1, 0, first[:2], rows=2)])
    return np.stack([np.concatenate([start, head]), np.concatenate([begun, rest])])
