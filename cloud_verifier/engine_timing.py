"""How much the engine adds to the target: ``python -m draftwire.cloud_verifier.engine_timing MODEL``.

One stream is generated plainly first; then again, with its own next tokens as drafts, so that every step verifies a
full block and commits all of it, which is the most the engine can have to do.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..protocol.messages import Commit, Draft, Limits, Message, Open
from ..protocol.sampling import SamplingParams
from .engine.engine import Engine
from .engine.stream import Owner
from .targets.target import Target
from .targets.transformers_target import TransformersTarget

__all__ = ["main"]

_PROMPT_TOKENS = 64
_TOKENS = 90


@dataclass(slots=True, eq=False)
class _Recorder(Owner):
    """An owner that keeps the committed tokens."""

    tokens: list[int]

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if isinstance(message, Commit) and message.token is not None:
                self.tokens.append(message.token)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the engine's share for greedy and coupled verification."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="hub id, folder or GGUF file of the target")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--drafted", type=int, default=8, help="draft tokens a step (default %(default)s)")
    parser.add_argument("--prompts", type=int, default=4, help="prompts to measure on (default %(default)s)")
    parsed = parser.parse_args(arguments)
    target = TransformersTarget.load(parsed.model, dtype=parsed.dtype, threads=parsed.threads)
    print(f"{'mode':10}{'target ms':>11}{'engine ms':>11}{'engine share':>14}{'steps':>8}")
    for mode, params in {"greedy": SamplingParams(), "coupled": SamplingParams(temperature=0.7)}.items():
        steps: list[tuple[float, float]] = []
        for start in range(100, 100 + parsed.prompts):
            steps += _measure(target, params, parsed.drafted, prompt=tuple(range(start, start + _PROMPT_TOKENS)))
        target_ms, engine_ms = (1000 * statistics.median(column) for column in zip(*steps, strict=True))
        print(f"{mode:10}{target_ms:11.2f}{engine_ms:11.2f}{engine_ms / target_ms:14.1%}{len(steps):8}")
    return 0


def _measure(
    target: Target, params: SamplingParams, drafted: int, *, prompt: tuple[int, ...]
) -> list[tuple[float, float]]:
    """Seconds inside and outside the target of each step that accepted all of ``drafted`` draft tokens.

    In half precision a block may flip a near-tie; the text then leaves the plain one, and measuring ends.
    """
    limits = Limits(
        max_context=min(1024, target.info.max_context),
        max_streams=1,
        max_message_bytes=65536,
        max_draft_tokens=64,
        max_backlog=64,
    )
    engine = Engine(target, limits=limits)
    plain, again = _Recorder([]), _Recorder([])
    _open(engine, plain, prompt, params, stream=1, drafting=False)
    while engine.active_streams:
        engine.step()
    _open(engine, again, prompt, params, stream=2, drafting=True)
    counters, steps, position = engine.counters, [], 1
    while position < _TOKENS - 2 * drafted:
        inside, whole, accepted = counters.target_seconds, counters.step_seconds, counters.accepted
        guess = tuple(plain.tokens[position : position + drafted])
        engine.draft(again, _draft(guess, path=position, start=_PROMPT_TOKENS + position))
        engine.step()
        if counters.accepted - accepted < drafted:
            break
        inside, whole = counters.target_seconds - inside, counters.step_seconds - whole
        steps.append((inside, whole - inside))
        position += drafted + 1
    engine.cancel(again, 2)
    engine.step()
    return steps


def _open(
    engine: Engine, owner: _Recorder, prompt: tuple[int, ...], params: SamplingParams, *, stream: int, drafting: bool
) -> None:
    """Open a stream and read its prompt."""
    engine.open(
        owner,
        Open(
            stream=stream,
            token_ids=prompt,
            prompt_length=len(prompt),
            params=params,
            max_tokens=_TOKENS,
            seed=1,
            drafting=drafting,
        ),
    )
    engine.step()


def _draft(tokens: tuple[int, ...], *, path: int, start: int) -> Draft:
    return Draft(
        stream=2, path=path, start=start, token_ids=tokens, confidences=(0,) * len(tokens), sent_at=0, continues=True
    )


if __name__ == "__main__":
    raise SystemExit(main())
