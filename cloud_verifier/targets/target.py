"""What the engine asks of a target model: hold streams, advance them in one ragged batch, forget what was rejected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...protocol.errors import BusyError, ErrorCode, InvalidParameterError

__all__ = ["Block", "OutOfKvMemoryError", "SavedKv", "Target", "TargetInfo", "check_blocks"]


class OutOfKvMemoryError(BusyError):
    """There is no memory for more keys and values now; nothing has changed, unless :meth:`Target.step` says so."""

    def __init__(self) -> None:
        super().__init__("no memory for another stream; try again later", code=ErrorCode.BUSY)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetInfo:
    """What a target is; the handshake tells clients most of it.

    Attributes:
        name: hub id, or the name of the folder or file it came from (never a path).
        vocabulary_size: token ids below this mean something: 1 + the tokenizer's highest id, at most ``logits_size``.
        logits_size: width of the model's own output, padding ids included.
        max_context: most tokens a stream may hold.
        eos_ids: every id that ends a stream, from configuration, generation configuration and tokenizer, ascending.
        fingerprint: of the vocabulary, see :func:`draftwire.protocol.fingerprint.vocabulary_fingerprint`.
        dtype: of the weights, such as ``"bfloat16"``.
        device: where it runs, such as ``"cpu"`` or ``"cuda:0"``.
    """

    name: str
    vocabulary_size: int
    logits_size: int
    max_context: int
    eos_ids: tuple[int, ...]
    fingerprint: bytes
    dtype: str
    device: str


@dataclass(frozen=True, slots=True)
class Block:
    """The tokens by which one stream advances in one step.

    Attributes:
        stream: id given to :meth:`Target.open`.
        start: position of ``tokens[0]``; must equal the stream's KV length.
        tokens: at least one token id.
        rows: how many logit rows are wanted, those after the last ``rows`` tokens; 1 to ``len(tokens)``.
    """

    stream: int
    start: int
    tokens: Sequence[int]
    rows: int = 1


class SavedKv(Protocol):
    """Keys and values copied out of a stream; made and understood by one target alone."""

    @property
    def nbytes(self) -> int:
        """Memory it takes."""
        ...


class Target(Protocol):
    """A target model and the KV cache of its streams. Used from one thread at a time.

    A ragged batch is exact: each stream gets the logits that it would get alone (in half precision up to rounding).
    Logits may be non-finite; judging that is the caller's part. Misuse (an unknown stream, a gap, a full stream)
    raises InvalidParameterError before anything changes.
    """

    info: TargetInfo
    tokenizer_json: str
    chat_template: str | None
    special_tokens: dict[str, str]
    """Texts that the chat template knows by name, such as ``bos_token``."""

    @property
    def kv_bytes(self) -> int:
        """Memory held for keys and values, what was saved included."""
        ...

    @property
    def kv_budget(self) -> int | None:
        """The most that :attr:`kv_bytes` may be; None for no limit."""
        ...

    def fits(self, room: int) -> bool:
        """Whether the budget has memory for a stream of ``room`` tokens, what was saved not counted."""
        ...

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """Start an empty stream that may grow to ``capacity`` tokens.

        Memory for ``room`` of them is the stream's from now on until it is closed; what it grows beyond that is, too.
        OutOfKvMemoryError when memory is out.
        """
        ...

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """Append each block to its stream; returns logits [rows, vocabulary_size] for each block, in order.

        OutOfKvMemoryError, with no stream changed, when memory is out. Where the machine itself refused memory that
        the budget allows, one stream may be left empty.
        """
        ...

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:
        """Forget all but the first ``length`` tokens of a stream.

        ``wipe``: leave nothing of any token that the stream ever held beyond those, as it may not be finite.
        """
        ...

    def length(self, stream: int) -> int:
        """How many tokens a stream holds."""
        ...

    def save(self, stream: int, start: int, end: int) -> SavedKv:
        """Copy the keys and values of tokens [start, end), to outlive the stream; OutOfKvMemoryError as above."""
        ...

    def restore(self, stream: int, blocks: Sequence[SavedKv]) -> None:
        """Append what was saved, in order, to a stream; OutOfKvMemoryError as above."""
        ...

    def release(self, block: SavedKv) -> None:
        """What was saved is no longer needed."""
        ...

    def close(self, stream: int) -> None:
        """End a stream and free its memory."""
        ...


def check_blocks(
    blocks: Sequence[Block],
    *,
    length: Callable[[int], int],
    capacity: Callable[[int], int],
    vocabulary_size: int,
) -> None:
    """Refuse a batch that would corrupt a stream, before anything is touched.

    Args:
        blocks: the batch.
        length: KV length of a stream; raises InvalidParameterError for an unknown one.
        capacity: most tokens a stream may hold.
        vocabulary_size: token ids must be below this.

    Raises:
        InvalidParameterError: naming what is wrong with which stream.
    """
    seen: set[int] = set()
    for block in blocks:
        count, held = len(block.tokens), length(block.stream)
        if block.stream in seen:
            raise InvalidParameterError("stream", f"{block.stream} is in the batch twice")
        seen.add(block.stream)
        if block.start != held:
            raise InvalidParameterError("start", f"{block.start}, but stream {block.stream} holds {held} tokens")
        if not 1 <= block.rows <= count:
            raise InvalidParameterError("rows", f"{block.rows} of {count} tokens of stream {block.stream}")
        if held + count > capacity(block.stream):
            problem = f"stream {block.stream} was opened for {capacity(block.stream)} tokens, not {held + count}"
            raise InvalidParameterError("capacity", problem)
        if min(block.tokens) < 0 or max(block.tokens) >= vocabulary_size:
            problem = f"stream {block.stream} has an id outside 0..{vocabulary_size - 1}"
            raise InvalidParameterError("tokens", problem)
