"""Traces: where a device's draft is right on a given text, recorded once and kept in a file.

A text that the target has committed is fed to the draft token by token, so every position is judged with the right
prefix before it. The proposals are drawn as in a stream, by the same code, so position for position the trace says
what the device would have proposed.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import InvalidParameterError
from ..protocol.noise import gumbel
from ..protocol.sampling import SamplingParams, TokenHistory, process_logits
from .drafter import Drafter
from .proposer import Proposer

__all__ = ["ABOUT", "Trace", "TraceRecord", "record"]

ABOUT = (
    "A draft on text that the target committed, with the right prefix before each position. ranks: of the committed "
    "token among the draft's scores, 0 where the device proposes it; above temperature 0 scores carry the noise of "
    "seed and position that both ends share. confidences: the byte that goes with the device's proposal, which means "
    "probability 2 ** (-byte / 16)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRecord:
    """One text: for each of its positions the committed token's rank, and the confidence byte of the proposal."""

    task: str
    temperature: float
    seed: int
    ranks: tuple[int, ...]
    confidences: tuple[int, ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """For each position whether the device proposes the committed token."""
        return tuple(rank == 0 for rank in self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Records of one pair of target and draft, named by the models' own names."""

    target: str
    draft: str
    about: str = ABOUT
    records: list[TraceRecord] = field(default_factory=list)

    def to_json(self) -> str:
        """What a file of it holds."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    def save(self, path: Path | str) -> None:
        """Write the trace as JSON.

        Raises:
            InvalidParameterError: the file cannot be written.
        """
        try:
            Path(path).write_text(self.to_json(), encoding="utf-8")
        except OSError as error:
            raise InvalidParameterError("trace", f"{path} cannot be written: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: Path | str) -> Trace:
        """Read what :meth:`save` wrote.

        Raises:
            InvalidParameterError: the file cannot be read, or what it holds is no trace; the message says where.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidParameterError("trace", f"{path} cannot be read: {error.strerror or error}") from error
        except ValueError as error:  # of which UnicodeDecodeError and JSONDecodeError are two
            raise InvalidParameterError("trace", f"{path} is no JSON text; record it again") from error
        except RecursionError as error:
            raise InvalidParameterError(
                "trace", f"{path} is no trace: it is nested too deep; record it again"
            ) from error
        try:
            return cls(
                target=_text(content, "target"),
                draft=_text(content, "draft"),
                about=_text(content, "about"),
                records=[_record(item) for item in _list(content, "records")],
            )
        except _Unexpected as problem:
            raise InvalidParameterError("trace", f"{path} is no trace: {problem}; record it again") from problem


def record(
    drafter: Drafter,
    prompt_ids: Sequence[int],
    answer_ids: Sequence[int],
    *,
    sampling: SamplingParams,
    seed: int,
    task: str = "",
) -> TraceRecord:
    """Feed the draft a text that the target committed.

    Args:
        drafter: used by nobody else meanwhile; its cache is left holding the text.
        prompt_ids: the prompt's token ids.
        answer_ids: what was committed after it, with ``sampling`` and ``seed``. Positions beyond the draft's context
            are left out, as no device would draft there.
        task: a label for the record.

    Raises:
        DrafterError: the model failed.
    """
    proposer = Proposer(sampling, seed=seed, prompt_length=len(prompt_ids))
    tokens = list(prompt_ids)
    ranks: list[int] = []
    confidences: list[int] = []
    for committed in answer_ids[: max(0, drafter.context_length - len(prompt_ids))]:
        drafter.sync(tokens)
        logits = drafter.feed(tokens[-1:])
        proposal, confidence = proposer.propose(logits, tokens)
        if proposal.token == committed:
            rank = 0
        else:
            history = TokenHistory(prompt_ids, tokens[len(prompt_ids) :])
            rank = max(1, _rank(_scores(logits, sampling, history, seed=seed, position=len(tokens)), committed))
        ranks.append(rank)
        confidences.append(confidence)
        tokens.append(committed)
    return TraceRecord(
        task=task,
        temperature=float(sampling.temperature),
        seed=seed,
        ranks=tuple(ranks),
        confidences=tuple(confidences),
    )


def _scores(
    logits: NDArray[np.float32], sampling: SamplingParams, history: TokenHistory, *, seed: int, position: int
) -> NDArray[np.float64]:
    """What a token is chosen by, [vocabulary_size]: scores, with the shared noise in coupled mode."""
    scores = process_logits(logits, sampling, history)
    if sampling.greedy or sampling.mode != "coupled":
        return scores
    return scores + gumbel(seed, position, np.arange(len(scores)))


def _rank(scores: NDArray[np.float64], token: int) -> int:
    """How many tokens come before ``token``; equals rank by id."""
    own = scores[token]
    return int((scores > own).sum() + (scores[:token] == own).sum())


# --- reading a file ---------------------------------------------------------------------------------------------------


class _Unexpected(Exception):
    """What is wrong, in words."""


def _record(item: Any) -> TraceRecord:
    temperature, seed = _temperature(item), _field(item, "seed")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise _Unexpected(f"a record's seed is {_shown(seed)}")
    ranks, confidences = _numbers(item, "ranks"), _numbers(item, "confidences", most=255)
    if len(ranks) != len(confidences):
        raise _Unexpected(f"a record has {len(ranks)} ranks and {len(confidences)} confidences")
    if not ranks:
        raise _Unexpected("a record is of no position")
    return TraceRecord(
        task=_text(item, "task"),
        temperature=temperature,
        seed=seed,
        ranks=ranks,
        confidences=confidences,
    )


def _temperature(item: Any) -> float:
    value = _field(item, "temperature")
    # Whole numbers in a file may have any number of digits, and JSON as Python reads it knows NaN and infinity.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise _Unexpected(f"a record's temperature is {_shown(value)}")
    return float(value)


def _field(content: Any, name: str) -> Any:
    if not isinstance(content, dict) or name not in content:
        raise _Unexpected(f"it has no {name}")
    return content[name]


def _text(content: Any, name: str) -> str:
    value = _field(content, name)
    if not isinstance(value, str):
        raise _Unexpected(f"{name} is {_shown(value)}, not text")
    return value


def _list(content: Any, name: str) -> list[Any]:
    value = _field(content, name)
    if not isinstance(value, list):
        raise _Unexpected(f"{name} is no list")
    return value


def _numbers(content: Any, name: str, *, most: float = float("inf")) -> tuple[int, ...]:
    values = _list(content, name)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise _Unexpected(f"{name} holds {_shown(value)}")
    return tuple(values)


def _shown(value: Any) -> str:
    """The value, or so much of it as fits a line, however deep or long it is."""
    return reprlib.repr(value)
