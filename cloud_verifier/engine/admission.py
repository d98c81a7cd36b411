"""What a client asks for, checked before anything is done for it."""

from __future__ import annotations

from ...protocol.errors import ErrorCode, InvalidParameterError, StreamError
from ...protocol.messages import Limits, Open
from ..targets.target import TargetInfo

__all__ = ["check_request"]


def check_request(request: Open, sequence: list[int], *, limits: Limits, info: TargetInfo) -> None:
    """Refuse what cannot be served.

    Args:
        request: what was asked.
        sequence: the whole text so far, a prefix that was only referred to included.

    Raises:
        StreamError: text and answer do not fit the context.
        InvalidParameterError: a token id is none of the target's.
    """
    needed = len(sequence) + request.max_tokens
    if needed > limits.max_context:
        raise StreamError(
            f"prompt of {len(sequence)} tokens and max_tokens {request.max_tokens} exceed "
            f"the context of {limits.max_context}; shorten one",
            code=ErrorCode.PROMPT_TOO_LONG,
        )
    named = {"logit_bias": [token for token, _ in request.params.logit_bias], "stop_ids": request.stop_ids}
    for field, tokens in named.items():
        if any(token >= info.vocabulary_size for token in tokens):
            raise InvalidParameterError(field, f"names token {max(tokens)}; ids end at {info.vocabulary_size - 1}")
