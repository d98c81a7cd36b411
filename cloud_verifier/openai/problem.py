"""What went wrong, in OpenAI's form: a status, and ``{"error": {message, type, param, code}}``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...protocol.errors import (
    DraftwireError,
    ErrorCode,
    InvalidParameterError,
    ModelNotFoundError,
    StreamError,
)
from ...protocol.messages import Error
from ..service.http import Refusal, Reply, json_reply, retry_headers

__all__ = ["Problem", "refusal_reply"]

_INVALID, _SERVER = "invalid_request_error", "server_error"
_TOO_LONG = "context_length_exceeded"
_OUTPUT = "max_tokens"

# Status, type and code.
_BY_CODE: dict[ErrorCode, tuple[int, str, str | None]] = {
    ErrorCode.INVALID_PARAMETER: (400, _INVALID, None),
    ErrorCode.PROMPT_TOO_LONG: (400, _INVALID, _TOO_LONG),
    ErrorCode.BUSY: (429, "rate_limit_error", "rate_limit_exceeded"),
    ErrorCode.SHUTTING_DOWN: (503, _SERVER, "shutting_down"),
}
_BY_STATUS: dict[int, tuple[str, str | None]] = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", None),
    408: ("timeout_error", None),
    413: (_INVALID, "request_too_large"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: (_SERVER, None),
}
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A call that was not answered.

    Attributes:
        status: HTTP's.
        message: one line: what is wrong and what to do.
        kind: OpenAI's ``type``.
        param: the request's field that is at fault.
        code: OpenAI's name for it, where it has one.
        retry_after: seconds, where coming again may help.
    """

    status: int
    message: str
    kind: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: DraftwireError) -> Problem:
        """Of an error that was raised before a stream was opened."""
        if isinstance(error, ModelNotFoundError):
            return cls(status=404, message=str(error), kind=_INVALID, param="model", code="model_not_found")
        if isinstance(error, InvalidParameterError):
            return cls(status=400, message=str(error), kind=_INVALID, param=error.field)
        retry_after = error.retry_after if isinstance(error, StreamError) else None
        return cls._of_code(error.code if isinstance(error, StreamError) else None, str(error), retry_after)

    @classmethod
    def of_frame(cls, frame: Error) -> Problem:
        """Of what the engine said of a stream."""
        retry_after = frame.retry_after_ms / 1000 if frame.retry_after_ms is not None else None
        return cls._of_code(frame.code, frame.message, retry_after)

    @classmethod
    def of_refusal(cls, refusal: Refusal) -> Problem:
        """Of what was said at the door."""
        default = (_SERVER if refusal.status >= 500 else _INVALID, None)
        kind, code = _BY_STATUS.get(refusal.status, default)
        return cls(status=refusal.status, message=str(refusal), kind=kind, code=code, retry_after=refusal.retry_after)

    @classmethod
    def _of_code(cls, code: ErrorCode | None, message: str, retry_after: float | None) -> Problem:
        status, kind, name = _BY_CODE.get(code, (500, _SERVER, None)) if code is not None else (500, _SERVER, None)
        param = message.partition(":")[0] if code is ErrorCode.INVALID_PARAMETER else None
        if status in (429, 503) and retry_after is None:
            retry_after = _RETRY_SECONDS
        return cls(status=status, message=message, kind=kind, param=param, code=name, retry_after=retry_after)

    def about(self, *, prompt: str, output: str = _OUTPUT) -> Problem:
        """Names the fields that a prompt too long or too many tokens were given in; the engine has names of its own."""
        if self.code == _TOO_LONG:
            return replace(self, param=prompt)
        if self.param == _OUTPUT != output:
            return replace(self, param=output, message=self.message.replace(_OUTPUT, output, 1))
        return self

    @property
    def body(self) -> dict[str, object]:
        """As JSON's values."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def reply(self) -> Reply:
        """As a whole reply."""
        headers = retry_headers(Refusal(self.status, self.message, retry_after=self.retry_after))
        return json_reply(self.body, status=self.status, headers=headers)


def refusal_reply(refusal: Refusal) -> Reply:
    """A refusal at the door, as OpenAI's clients expect it."""
    return Problem.of_refusal(refusal).reply()
