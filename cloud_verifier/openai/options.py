"""What completions and chat completions ask for alike: how tokens are drawn, how many, and where they stop.

A field that would change the answer and is not supported is refused by its name; none is silently ignored. Those that
change nothing of the answer are let pass.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError
from ...protocol.sampling import SamplingParams
from .fields import Fields, check_text, shown

__all__ = ["MOST_STOPS", "Options", "read_max_tokens", "read_options"]

MOST_STOPS = 4
_STOP_CHARACTERS = 500
_MOST_TOKENS = 2**31 - 1
_SEEDS = 2**64
_DRAWN_SEED_BITS = 53
"""Of a seed that is drawn here: few enough for every reader of JSON to keep it whole."""

_INCIDENTAL = (
    "metadata",
    "parallel_tool_calls",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One call's options.

    Attributes:
        model: that was asked for; None for whichever there is.
        sampling: how tokens are drawn; temperature is 1 where none was given.
        seed: of the first choice of each prompt; the others count up from it.
        count: choices for each prompt.
        stops: texts that end a choice, and are not part of it.
        ignore_eos: go on after an end-of-sequence id.
        stream: send the answer as it grows.
        include_usage: end a stream with its usage.
    """

    model: str | None
    sampling: SamplingParams
    seed: int
    count: int
    stops: tuple[str, ...]
    ignore_eos: bool
    stream: bool
    include_usage: bool

    def seed_of(self, sample: int) -> int:
        """Seed of a prompt's choice, counted from 0."""
        return (self.seed + sample) % _SEEDS


def read_options(fields: Fields, *, most_choices: int) -> Options:
    """Read the options of a request.

    Raises:
        InvalidParameterError: naming the field that is out of range, or not supported.
    """
    fields.ignore(*_INCIDENTAL)
    stream = fields.flag("stream")
    seed = fields.whole("seed", low=-(2**63), high=_SEEDS - 1)
    return Options(
        model=fields.text("model"),
        sampling=_sampling(fields),
        seed=secrets.randbits(_DRAWN_SEED_BITS) if seed is None else seed % _SEEDS,
        count=fields.whole("n", low=1, high=most_choices) or 1,
        stops=_stops(fields),
        ignore_eos=fields.flag("ignore_eos"),
        stream=stream,
        include_usage=_include_usage(fields, stream),
    )


def read_max_tokens(fields: Fields, field: str) -> int | None:
    """Most tokens of a choice."""
    return fields.whole(field, low=1, high=_MOST_TOKENS)


def _sampling(fields: Fields) -> SamplingParams:
    return SamplingParams(
        temperature=fields.real("temperature", 1.0),
        top_k=fields.whole("top_k", low=0, high=_MOST_TOKENS) or 0,
        top_p=fields.real("top_p", 1.0),
        min_p=fields.real("min_p", 0.0),
        repetition_penalty=fields.real("repetition_penalty", 1.0),
        presence_penalty=fields.real("presence_penalty", 0.0),
        frequency_penalty=fields.real("frequency_penalty", 0.0),
        logit_bias=_logit_bias(fields.mapping("logit_bias") or {}),
    )


def _logit_bias(biases: Mapping[str, object]) -> tuple[tuple[int, float], ...]:
    pairs = []
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise InvalidParameterError("logit_bias", f"names no token id: {shown(token)}")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise InvalidParameterError("logit_bias", f"must hold numbers, not {shown(bias)}")
        pairs.append((int(token), bias))
    return tuple(pairs)


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong("stop", f"must be a string or up to {MOST_STOPS} strings")
    if len(stops) > MOST_STOPS:
        raise fields.wrong("stop", f"has {len(stops)} strings; at most {MOST_STOPS} are taken")
    if not all(1 <= len(stop) <= _STOP_CHARACTERS for stop in stops):
        raise fields.wrong("stop", f"has a string that is empty or longer than {_STOP_CHARACTERS} characters")
    for stop in stops:
        check_text(stop, field="stop")
    return tuple(stops)


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.mapping("stream_options")
    if options is None:
        return False
    if not stream:
        raise fields.wrong("stream_options", "is for streams; set stream to true, or leave it out")
    inner = Fields(options, path="stream_options.")
    inner.ignore("include_obfuscation")
    wanted = inner.flag("include_usage")
    inner.finish()
    return wanted
