"""A target without a model: logits looked up in a seeded random table, exact and fast, for tests of all the rest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...protocol.errors import InvalidParameterError
from ...protocol.fingerprint import vocabulary_fingerprint
from .target import Block, OutOfKvMemoryError, SavedKv, TargetInfo, check_blocks

__all__ = ["SavedTokens", "TableTarget"]

_EOS_TEXT = "<eos>"
_EOS_ID = 0
_MAX_ROWS = 1 << 14
"""Table rows: all pairs of tokens up to 127 tokens of vocabulary, pairs folded together above."""


@dataclass(frozen=True, slots=True, eq=False)
class SavedTokens:
    """What stands in for saved keys and values: the tokens themselves."""

    tokens: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """A token is a byte here."""
        return len(self.tokens)


class TableTarget:
    """A Markov chain over the last two tokens, behind the :class:`~.target.Target` interface.

    Each token is one character, id 0 is ``<eos>``; ``tokenizer_json`` encodes and decodes such text. The streams'
    tokens stand in for the KV cache, and bookkeeping is as strict as that of a real target.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int = 16,
        seed: int = 0,
        scale: float = 2.0,
        eos_bias: float = 0.0,
        padding: int = 0,
        max_context: int = 4096,
        kv_budget: int | None = None,
    ) -> None:
        """Draw the table.

        Args:
            vocabulary_size: tokens, ``<eos>`` included; 2 to 20000.
            seed: of the table; equal arguments give equal targets.
            scale: standard deviation of the logits.
            eos_bias: added to the logit of ``<eos>``; ``-inf`` makes endless text.
            padding: ids above the vocabulary that the logits pretend to have (``info.logits_size``).
            max_context: most tokens a stream may hold.
            kv_budget: tokens that all streams and blocks may hold together, a "byte" each; None for no limit.
        """
        if not 2 <= vocabulary_size <= 20_000:
            raise InvalidParameterError("vocabulary_size", f"must be 2 to 20000, not {vocabulary_size}")
        rows = min((vocabulary_size + 1) ** 2, _MAX_ROWS)
        table = np.random.default_rng(seed).standard_normal((rows, vocabulary_size)) * scale
        table[:, _EOS_ID] += eos_bias
        self._table: NDArray[np.float32] = table.astype(np.float32)  # [rows, vocabulary_size]
        self._tokens: dict[int, list[int]] = {}
        self._capacity: dict[int, int] = {}
        self._room: dict[int, int] = {}
        self._saved = 0
        self._budget = kv_budget
        vocabulary = _vocabulary(vocabulary_size)
        self.tokenizer_json = _tokenizer_json(vocabulary)
        self.chat_template: str | None = None
        self.special_tokens: dict[str, str] = {}
        self.info = TargetInfo(
            name=f"table-{vocabulary_size}-{seed}",
            vocabulary_size=vocabulary_size,
            logits_size=vocabulary_size + padding,
            max_context=max_context,
            eos_ids=(_EOS_ID,),
            fingerprint=vocabulary_fingerprint(vocabulary, [_EOS_TEXT]),
            dtype="float32",
            device="cpu",
        )

    def logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits [vocabulary_size] of the token after ``tokens``: the exact distribution that tests compare with."""
        newest = tokens[-1] if tokens else -1
        before = tokens[-2] if len(tokens) > 1 else -1
        row = (before + 1) * (self.info.vocabulary_size + 1) + newest + 1
        logits: NDArray[np.float32] = self._table[row % len(self._table)]
        return logits

    @property
    def kv_bytes(self) -> int:
        """See :attr:`Target.kv_bytes`; a token is a byte here, and so is one that there is only room for."""
        return self._saved + sum(list(self._room.values()))

    @property
    def kv_budget(self) -> int | None:
        """See :attr:`Target.kv_budget`."""
        return self._budget

    def fits(self, room: int) -> bool:
        """See :meth:`Target.fits`."""
        return self._budget is None or self.kv_bytes - self._saved + room <= self._budget

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        """See :meth:`Target.open`."""
        if stream in self._tokens:
            raise InvalidParameterError("stream", f"{stream} is open already")
        if not 1 <= capacity <= self.info.max_context:
            raise InvalidParameterError("capacity", f"must be 1 to {self.info.max_context}, not {capacity}")
        self._afford(min(room, capacity))
        self._tokens[stream] = []
        self._capacity[stream] = capacity
        self._room[stream] = min(room, capacity)

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        """See :meth:`Target.step`."""
        check_blocks(
            blocks,
            length=self.length,
            capacity=self._capacity.__getitem__,
            vocabulary_size=self.info.vocabulary_size,
        )
        self._reserve({block.stream: block.start + len(block.tokens) for block in blocks})
        return [self._advance(block) for block in blocks]

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:  # noqa: ARG002
        """See :meth:`Target.rollback`."""
        if not 0 <= length <= self.length(stream):
            raise InvalidParameterError("length", f"{length}, but stream {stream} holds {self.length(stream)} tokens")
        del self._tokens[stream][length:]

    def length(self, stream: int) -> int:
        """See :meth:`Target.length`."""
        return len(self._held(stream))

    def save(self, stream: int, start: int, end: int) -> SavedTokens:
        """See :meth:`Target.save`."""
        if not 0 <= start < end <= self.length(stream):
            raise InvalidParameterError("end", f"[{start}, {end}) of a stream that holds {self.length(stream)} tokens")
        self._afford(end - start)
        self._saved += end - start
        return SavedTokens(tuple(self._tokens[stream][start:end]))

    def restore(self, stream: int, blocks: Sequence[SavedKv]) -> None:
        """See :meth:`Target.restore`."""
        tokens = [token for block in blocks if isinstance(block, SavedTokens) for token in block.tokens]
        if self.length(stream) + len(tokens) > self._capacity[stream]:
            raise InvalidParameterError("blocks", f"are more than the {self._capacity[stream]} tokens of the stream")
        self._reserve({stream: self.length(stream) + len(tokens)})
        self._held(stream).extend(tokens)

    def release(self, block: SavedKv) -> None:
        """See :meth:`Target.release`."""
        self._saved -= block.nbytes

    def _reserve(self, lengths: dict[int, int]) -> None:
        """Make room for streams of so many tokens; room once made stays."""
        rooms = {stream: max(length, self._room[stream]) for stream, length in lengths.items()}
        self._afford(sum(rooms.values()) - sum(self._room[stream] for stream in rooms))
        self._room |= rooms

    def _afford(self, tokens: int) -> None:
        if self._budget is not None and self.kv_bytes + tokens > self._budget:
            raise OutOfKvMemoryError

    def close(self, stream: int) -> None:
        """See :meth:`Target.close`."""
        self._held(stream)
        del self._tokens[stream], self._capacity[stream], self._room[stream]

    def _held(self, stream: int) -> list[int]:
        if stream not in self._tokens:
            raise InvalidParameterError("stream", f"{stream} is not open")
        return self._tokens[stream]

    def _advance(self, block: Block) -> NDArray[np.float32]:
        held = self._tokens[block.stream]
        held.extend(block.tokens)
        ends = range(len(held) - block.rows + 1, len(held) + 1)
        return np.stack([self.logits_after(held[max(0, end - 2) : end]) for end in ends])


def _vocabulary(size: int) -> dict[str, int]:
    """Token text to id: ``<eos>``, then letters, a space, digits and, from 64 on, one Chinese character each."""
    letters = "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    texts = [_EOS_TEXT, *letters, *(chr(0x4E00 + index) for index in range(max(0, size - 1 - len(letters))))]
    return {text: token for token, text in enumerate(texts[:size])}


def _tokenizer_json(vocabulary: dict[str, int]) -> str:
    """The text of a tokenizer.json in which every character is a token and decoding joins without spaces."""
    eos = {"id": _EOS_ID, "content": _EOS_TEXT, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [eos | flags],
            "normalizer": None,
            "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
            "post_processor": None,
            "decoder": {"type": "Fuse"},
            "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
        }
    )
