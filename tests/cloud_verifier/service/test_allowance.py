"""What one visitor may ask for."""

from __future__ import annotations

from typing import Any

import pytest
from draftwire.cloud_verifier.engine.tenant import Tenant
from draftwire.cloud_verifier.service.allowance import UNLIMITED, Allowance
from draftwire.cloud_verifier.service.config import KeyRules
from draftwire.cloud_verifier.service.quota import Buckets
from draftwire.protocol.errors import BusyError, ErrorCode, InvalidParameterError, PromptTooLongError
from draftwire.protocol.messages import Error, Open, Prefix
from draftwire.protocol.sampling import SamplingParams


class Case:
    """An allowance whose rules and clock are set by hand."""

    def __init__(self, **rules: Any) -> None:
        self.rules = KeyRules(**rules)
        self.now = 0.0
        self.refused: list[str] = []
        self.buckets = Buckets(most=8, clock=lambda: self.now)
        self.allowance = self.of("alice")

    def of(self, name: str) -> Allowance:
        return Allowance(
            tenant=lambda: Tenant(name=name, max_streams=self.rules.max_streams),
            rules=lambda: self.rules,
            buckets=self.buckets,
            name=name,
            refused=self.refused.append,
        )


def opening(tokens: int = 4, *, prompt: int | None = None, output: int = 10, **more: Any) -> Open:
    """An OPEN of so many tokens, of which ``prompt`` are prompt."""
    return Open(
        stream=2,
        token_ids=(1,) * tokens,
        prompt_length=tokens if prompt is None else prompt,
        params=SamplingParams(),
        max_tokens=output,
        seed=0,
        **more,
    )


def test_nothing_set_is_no_limit() -> None:
    for _ in range(1000):
        UNLIMITED.ask(opening(5000, output=10**6))
    assert UNLIMITED.tenant is None


def test_requests_a_minute_and_when_to_come_again() -> None:
    case = Case(requests_per_minute=2)
    case.allowance.ask(opening())
    case.of("alice").ask(opening())  # another connection of the same key
    with pytest.raises(BusyError, match="more than 2 requests a minute") as caught:
        case.allowance.ask(opening())
    frame = Error.of(2, caught.value)
    assert (frame.code, frame.retry_after_ms) == (ErrorCode.BUSY, 30_000)
    case.of("bob").ask(opening())
    case.now = 30.0
    case.allowance.ask(opening())
    assert case.refused == ["requests_per_minute"]


def test_too_long_a_prompt_costs_no_request() -> None:
    case = Case(requests_per_minute=1, max_prompt_tokens=8)
    with pytest.raises(PromptTooLongError, match="9 tokens; at most 8") as caught:
        case.allowance.ask(opening(9))
    assert caught.value.code is ErrorCode.PROMPT_TOO_LONG
    with pytest.raises(PromptTooLongError):  # a prefix is a part of the prompt
        case.allowance.ask(opening(2, prompt=9, prefix=Prefix(stream=1, length=7)))
    case.allowance.ask(opening(8))
    assert case.refused == ["max_prompt_tokens"] * 2


def test_several_at_once_are_allowed_together_or_not_at_all() -> None:
    case = Case(requests_per_minute=6, max_output_tokens=10)
    with pytest.raises(InvalidParameterError, match="max_tokens"):  # the last is wrong, and the others cost nothing
        case.allowance.ask(opening(), opening(output=11))
    with pytest.raises(InvalidParameterError, match=r"n: asks for 7 answers.* at most 6 are allowed here"):
        case.allowance.ask(*[opening()] * 7)
    case.allowance.ask(*[opening()] * 4)
    with pytest.raises(BusyError, match=r"try again in 10\.0 s"):
        case.allowance.ask(*[opening()] * 3)
    case.allowance.ask(*[opening()] * 2)
    assert case.refused == ["max_output_tokens", "requests_per_minute", "requests_per_minute"]


def test_too_much_output() -> None:
    case = Case(max_output_tokens=10)
    with pytest.raises(InvalidParameterError, match="max_tokens: asks for 11 tokens; at most 10"):
        case.allowance.ask(opening(output=11))
    case.allowance.ask(opening(output=10))


def test_a_resumed_answer_is_output_and_a_prompt_called_committed_gains_nothing() -> None:
    case = Case(max_prompt_tokens=5, max_output_tokens=10)
    case.allowance.ask(opening(11, prompt=4, output=3))  # 7 are committed, 3 are to come
    with pytest.raises(InvalidParameterError, match="max_tokens"):
        case.allowance.ask(opening(11, prompt=4, output=4))
    with pytest.raises(InvalidParameterError, match="max_tokens"):
        case.allowance.ask(opening(16, prompt=1, output=1))


def test_rules_that_change_hold_at_once() -> None:
    case = Case(max_output_tokens=10)
    case.rules = KeyRules(max_output_tokens=2, max_streams=7)
    with pytest.raises(InvalidParameterError):
        case.allowance.ask(opening(output=3))
    tenant = case.allowance.tenant
    assert tenant is not None
    assert tenant.max_streams == 7
