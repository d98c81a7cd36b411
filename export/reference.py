"""What the torch model says, recorded once: the figures every exported graph is held against."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import BundleCorruptError

__all__ = ["REFERENCE_NAME", "Continuation", "Reference", "load_references", "save_references"]

REFERENCE_NAME = "reference.json"


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt and the torch model's own greedy text after it.

    ``token_ids``: prompt, then continuation. ``logits``: the torch model's [continuation, vocabulary] that chose
    each token of the continuation; absent when read back from a bundle.
    """

    kind: str
    token_ids: tuple[int, ...]
    prompt_length: int
    logits: NDArray[np.float32] | None = field(default=None, compare=False)

    @property
    def top_ids(self) -> NDArray[np.int64]:
        """The torch model's first choice at each position of the continuation."""
        return np.array(self.token_ids[self.prompt_length :], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Everything an export needs from the torch model after the model itself has been let go.

    ``eos_ids``: every id that any of the configurations or the tokenizer calls an end of sequence.
    ``window``: length of its sliding attention window, None where every layer sees everything.
    ``long_ids`` and ``long_logits`` [rows, vocabulary]: a text that runs past the window and the torch logits at its
    last rows; absent where there is no window, or one too long to try.
    """

    architecture: str
    context_length: int
    notes: tuple[str, ...]
    tied: bool
    weight_bytes: int
    eos_ids: tuple[int, ...]
    continuations: tuple[Continuation, ...]
    window: int | None = None
    long_ids: tuple[int, ...] = ()
    long_logits: NDArray[np.float32] | None = None


def save_references(
    folder: Path, continuations: Sequence[Continuation], draft_top_ids: Sequence[NDArray[np.int64]]
) -> None:
    """Write the torch model's choices and the draft's own, so that a bundle can be checked without the model."""
    entries = [
        {
            "kind": item.kind,
            "prompt_length": item.prompt_length,
            "token_ids": list(item.token_ids),
            "draft_top_ids": [int(token) for token in top],
        }
        for item, top in zip(continuations, draft_top_ids, strict=True)
    ]
    (folder / REFERENCE_NAME).write_text(json.dumps({"continuations": entries}) + "\n", encoding="utf-8")


def load_references(folder: Path) -> tuple[list[Continuation], list[NDArray[np.int64]]]:
    """Read what :func:`save_references` wrote.

    Raises:
        BundleCorruptError: the file is missing or is not what it should be.
    """
    try:
        entries = json.loads((folder / REFERENCE_NAME).read_text(encoding="utf-8"))["continuations"]
        continuations = [
            Continuation(entry["kind"], tuple(entry["token_ids"]), entry["prompt_length"]) for entry in entries
        ]
        tops = [np.array(entry["draft_top_ids"], dtype=np.int64) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleCorruptError(f"{folder} has no readable {REFERENCE_NAME}; export the draft again") from error
    return continuations, tops
