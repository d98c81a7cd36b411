"""Errors in OpenAI's form."""

from __future__ import annotations

import json

import pytest
from draftwire.cloud_verifier.openai.problem import Problem, refusal_reply
from draftwire.cloud_verifier.service.http import Refusal
from draftwire.protocol.errors import (
    BusyError,
    DraftwireError,
    ErrorCode,
    InvalidParameterError,
    ModelNotFoundError,
    NonFiniteLogitsError,
    PromptTooLongError,
)
from draftwire.protocol.messages import Error

INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (InvalidParameterError("top_p", "is wrong"), 400, INVALID, "top_p", None),
        (ModelNotFoundError("no such model"), 404, INVALID, "model", "model_not_found"),
        (
            PromptTooLongError("too long", code=ErrorCode.PROMPT_TOO_LONG),
            400,
            INVALID,
            None,
            "context_length_exceeded",
        ),
        (
            BusyError("busy", code=ErrorCode.BUSY, retry_after=2.2),
            429,
            "rate_limit_error",
            None,
            "rate_limit_exceeded",
        ),
        (DraftwireError("whatever"), 500, "server_error", None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_errors_of_ours(error: DraftwireError, status: int, kind: str, param: str | None, code: str | None) -> None:
    reply = Problem.of(error).reply()
    assert (reply.status, reply.content_type) == (status, "application/json")
    assert isinstance(reply.body, bytes)
    body = {"message": str(error), "type": kind, "param": param, "code": code}
    assert json.loads(reply.body) == {"error": body}
    assert reply.headers.get("Retry-After") == ("3" if status == 429 else None)


def test_what_the_engine_says() -> None:
    wrong = Problem.of_frame(Error.of(1, InvalidParameterError("logit_bias", "names token 9")))
    assert (wrong.status, wrong.param) == (400, "logit_bias")
    busy = Problem.of_frame(Error(stream=1, code=ErrorCode.BUSY, retry_after_ms=4000))
    assert (busy.status, busy.reply().headers["Retry-After"]) == (429, "4")
    leaving = Problem.of_frame(Error(stream=1, code=ErrorCode.SHUTTING_DOWN))
    assert (leaving.status, leaving.code, leaving.retry_after) == (503, "shutting_down", 1.0)
    assert Problem.of_frame(Error.of(1, NonFiniteLogitsError("NaN"))).status == 500
    assert Problem.of_frame(Error(stream=1, code=ErrorCode.INTERNAL)).status == 500


def test_a_prompt_too_long_is_the_prompts_fault() -> None:
    too_long = Problem.of_frame(Error(stream=1, code=ErrorCode.PROMPT_TOO_LONG, message="too long"))
    assert too_long.about(prompt="messages").param == "messages"
    other = Problem.of(InvalidParameterError("top_p", "is wrong"))
    assert other.about(prompt="messages", output="max_completion_tokens") == other


def test_too_many_tokens_are_the_fault_of_the_field_that_asked_for_them() -> None:
    problem = Problem.of(InvalidParameterError("max_tokens", "asks for 9 tokens"))
    assert problem.about(prompt="messages") == problem
    newer = problem.about(prompt="messages", output="max_completion_tokens")
    assert (newer.param, newer.message) == ("max_completion_tokens", "max_completion_tokens: asks for 9 tokens")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (413, "invalid_request_error"),
        (418, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (503, "server_error"),
    ],
)
def test_refusals_at_the_door(status: int, kind: str) -> None:
    reply = refusal_reply(Refusal(status, "not so"))
    assert isinstance(reply.body, bytes)
    assert reply.status == status
    assert json.loads(reply.body)["error"]["type"] == kind
    assert ("WWW-Authenticate" in reply.headers) == (status == 401)
