"""Streams whose devices are replayed from a trace, on a target that takes as long as a model does.

Every step really runs the model, over as many tokens as in service. Its answers are replaced by a script, and the
devices propose what the script says where the recorded draft was right, and something else where it was not, with the
recorded confidence. So the time is that of the model and the agreement that of a real draft on real text, while no
device shares the machine. Drafts are always there in time, as under the cost policy; the scheduler decides how many of
them a step takes.
"""

from __future__ import annotations

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import InvalidParameterError
from ..protocol.messages import Commit, Draft, Limits, Message, Open, Policy
from ..protocol.sampling import SamplingParams
from .engine.engine import Engine
from .engine.scheduler import Scheduler
from .engine.stream import Owner
from .targets.table_target import TableTarget
from .targets.target import Block, Target

__all__ = ["PROMPT_TOKENS", "Result", "Script", "load_script", "run"]

_VOCABULARY = 64
PROMPT_TOKENS = 100
_LEAST_POSITIONS = 32
_FLAT_SECONDS = 0.003
_FLAT_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Script:
    """Where a draft is right, position by position, and the confidence bytes that it sends along."""

    right: Sequence[bool]
    confidences: Sequence[int]

    def expected(self, look_ahead: int) -> float:
        """Tokens that a step commits on average with so many proposals: those before the first wrong one, and one."""
        starts = range(len(self.right) - look_ahead)
        runs = (sum(1 for _ in itertools.takewhile(bool, self.right[start : start + look_ahead])) for start in starts)
        return 1 + statistics.fmean(runs)


@dataclass(frozen=True, slots=True)
class Result:
    """``committed`` tokens in ``seconds`` of the target, over ``steps`` steps that computed ``tokens``."""

    committed: int
    seconds: float
    steps: int
    tokens: int

    @property
    def rate(self) -> float:
        """Committed tokens a second of the target."""
        return self.committed / self.seconds


def load_script(path: Path | str) -> Script:
    """The greedy records of a trace, one after the other.

    Raises:
        InvalidParameterError: the file is no trace, or has too little in it.
    """
    try:
        records = json.loads(Path(path).read_text("utf-8"))["records"]
        greedy = [record for record in records if record["temperature"] == 0]
        right = [rank == 0 for record in greedy for rank in record["ranks"]]
        confidences = [int(byte) for record in greedy for byte in record["confidences"]]
    except OSError as error:
        raise InvalidParameterError("trace", f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidParameterError("trace", f"{path} is no trace; make one with draftwire bench --record") from error
    if len(right) < _LEAST_POSITIONS or len(right) != len(confidences):
        raise InvalidParameterError("trace", f"{path} has {len(right)} greedy positions; record more")
    return Script(right, confidences)


class _ScriptedTarget(TableTarget):
    """Takes as long as a model does, and says what the script says: the token at a position is its number."""

    def __init__(self, model: Target | None) -> None:
        super().__init__(vocabulary_size=_VOCABULARY, max_context=8192)
        self._model = model
        self.seconds = 0.0
        self.steps = 0
        self.tokens = 0

    def open(self, stream: int, capacity: int, *, room: int = 1) -> None:
        super().open(stream, capacity, room=room)
        if self._model is not None:
            self._model.open(stream, capacity, room=room)

    def rollback(self, stream: int, length: int, *, wipe: bool = False) -> None:
        super().rollback(stream, length, wipe=wipe)
        if self._model is not None:
            self._model.rollback(stream, length, wipe=wipe)

    def close(self, stream: int) -> None:
        super().close(stream)
        if self._model is not None:
            self._model.close(stream)

    def step(self, blocks: Sequence[Block]) -> list[NDArray[np.float32]]:
        began = time.perf_counter()
        if self._model is not None:
            self._model.step(blocks)
        else:
            time.sleep(_FLAT_SECONDS * max(1.0, sum(len(block.tokens) for block in blocks) / _FLAT_TOKENS))
        self.seconds += time.perf_counter() - began
        self.steps += 1
        self.tokens += sum(len(block.tokens) for block in blocks)
        super().step(blocks)
        return [self._rows(block) for block in blocks]

    def _rows(self, block: Block) -> NDArray[np.float32]:
        rows = np.zeros((block.rows, _VOCABULARY), np.float32)
        end = block.start + len(block.tokens)
        for row, position in enumerate(range(end - block.rows + 1, end + 1)):
            rows[row, _said(position)] = 1.0
        return rows


def _said(position: int) -> int:
    """The script's token at a position; never an end of text."""
    return 1 + position % (_VOCABULARY - 1)


class _Device(Owner):
    """Drafts ``look_ahead`` tokens beyond what is committed, at once."""

    def __init__(self, engine: Engine, script: Script, *, offset: int, look_ahead: int) -> None:
        self._engine = engine
        self._script = script
        self._offset = offset
        self._look_ahead = look_ahead
        self._length = self._end = PROMPT_TOKENS
        self._path = 1
        self._alive = True
        self.committed = 0

    def open(self, number: int, *, max_tokens: int) -> None:
        prompt = [(number * 7 + index) % _VOCABULARY for index in range(PROMPT_TOKENS)]
        request = Open(
            stream=1,
            token_ids=tuple(prompt),
            prompt_length=PROMPT_TOKENS,
            params=SamplingParams(),
            max_tokens=max_tokens,
            seed=number,
            policy=Policy.COST,
            drafting=self._look_ahead > 0,
        )
        self._engine.open(self, request)

    def draft(self) -> None:
        """Add to the path, or start a new one where it was wrong."""
        if not self._look_ahead or not self.committed:
            return
        if not self._alive:
            self._path, self._end, self._alive = self._path + 1, self._length, True
        tokens, confidences = [], []
        for position in range(self._end, self._length + self._look_ahead):
            index = (position + self._offset) % len(self._script.right)
            tokens.append(_said(position) if self._script.right[index] else _said(position + 1))
            confidences.append(self._script.confidences[index])
        if tokens:
            frame = Draft(
                stream=1,
                path=self._path,
                start=self._end,
                token_ids=tuple(tokens),
                confidences=tuple(confidences),
                sent_at=0,
                continues=True,
            )
            self._end += len(tokens)
            self._engine.draft(self, frame)

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Commit):
                count = message.accepted + (message.token is not None)
                for position in range(self._length, self._length + count):
                    right = self._script.right[(position + self._offset) % len(self._script.right)]
                    self._alive = self._alive and right and position < self._end
                self._length += count
                self.committed += count


def run(
    script: Script, *, model: Target | None, streams: int, look_ahead: int, tokens: int, scheduler: Scheduler
) -> Result:
    """Advance ``streams`` streams together until the first of them has ``tokens`` tokens.

    Args:
        script: of the devices.
        model: whose time counts; None for one whose step takes the same time up to 200 tokens.
        streams: open from the beginning to the end.
        look_ahead: draft tokens of each beyond what is committed; 0 is plain streaming.
        tokens: see above.
        scheduler: decides how many of them are verified.
    """
    limits = Limits(
        max_context=8192, max_streams=streams, max_message_bytes=1 << 16, max_draft_tokens=64, max_backlog=64
    )
    target = _ScriptedTarget(model)
    engine = Engine(target, limits=limits, scheduler=scheduler, prefix_tokens=0)
    devices = [_Device(engine, script, offset=number * 37, look_ahead=look_ahead) for number in range(1, streams + 1)]
    for number, device in enumerate(devices, start=1):
        device.open(number, max_tokens=tokens + 64)
    while not all(device.committed for device in devices):  # prompts
        engine.step()
    before = (sum(device.committed for device in devices), target.seconds, target.steps, target.tokens)
    while max(device.committed for device in devices) < tokens:
        for device in devices:
            device.draft()
        engine.step()
    committed = sum(device.committed for device in devices)
    result = Result(
        committed - before[0], target.seconds - before[1], target.steps - before[2], target.tokens - before[3]
    )
    engine.stop()
    return result
