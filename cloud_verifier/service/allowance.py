"""What one visitor may ask for: requests a minute, prompt and output tokens."""

from __future__ import annotations

from collections.abc import Callable

from ...protocol.errors import BusyError, ErrorCode, InvalidParameterError, PromptTooLongError
from ...protocol.messages import Open
from ..engine.tenant import Tenant
from .config import KeyRules
from .quota import Buckets, capacity

__all__ = ["UNLIMITED", "Allowance"]


class Allowance:
    """Asked before each stream is opened, by whichever protocol.

    The rules are looked up each time, so that a reload holds for connections that are open already.

    Args:
        tenant: whose streams they will be, as of now; None leaves them to whose they were.
        rules: as of now.
        buckets: of requests; shared by all connections of one name.
        name: in ``buckets``.
        refused: is told the limit that refused something.
    """

    def __init__(
        self,
        *,
        tenant: Callable[[], Tenant] | None = None,
        rules: Callable[[], KeyRules],
        buckets: Buckets,
        name: str,
        refused: Callable[[str], None],
    ) -> None:
        self._tenant = tenant
        self._rules = rules
        self._buckets = buckets
        self._name = name
        self._refused = refused

    @property
    def tenant(self) -> Tenant | None:
        """Whose streams those opened from now on are; None where that does not change."""
        return self._tenant() if self._tenant is not None else None

    @property
    def most_output(self) -> int | None:
        """Tokens that an answer may have; None for any number."""
        return self._rules().max_output_tokens

    def ask(self, *requests: Open) -> None:
        """Take leave to open streams: for all of them or for none.

        A resumed stream's committed tokens are output: it had leave for them, and calling a prompt committed gains
        nothing, as the sum of both limits holds in any case.

        Raises:
            BusyError: too many requests this minute; it says when to come again.
            PromptTooLongError: more prompt than is allowed.
            InvalidParameterError: more output than is allowed, or more streams at once than ever will be.
        """
        rules = self._rules()
        for request in requests:
            self._check_sizes(request, rules)
        if rules.requests_per_minute is not None:
            self._take(len(requests), rules.requests_per_minute)

    def _check_sizes(self, request: Open, rules: KeyRules) -> None:
        most = rules.max_prompt_tokens
        if most is not None and request.prompt_length > most:
            self._refused("max_prompt_tokens")
            raise PromptTooLongError(
                f"the prompt has {request.prompt_length} tokens; at most {most} are allowed here; shorten it",
                code=ErrorCode.PROMPT_TOO_LONG,
            )
        output = request.length - request.prompt_length + request.max_tokens
        most = rules.max_output_tokens
        if most is not None and output > most:
            self._refused("max_output_tokens")
            raise InvalidParameterError("max_tokens", f"asks for {output} tokens; at most {most} are allowed here")

    def _take(self, count: int, per_minute: float) -> None:
        most = int(capacity(per_minute))
        if count > most:
            self._refused("requests_per_minute")
            raise InvalidParameterError(
                "n", f"asks for {count} answers, each a request; at most {most} are allowed here"
            )
        wait = self._buckets.take(self._name, per_minute, count=count)
        if wait:
            self._refused("requests_per_minute")
            noun = "request" if per_minute == 1 else "requests"
            raise BusyError(
                f"more than {per_minute:g} {noun} a minute; try again in {wait:.1f} s",
                code=ErrorCode.BUSY,
                retry_after=wait,
            )


UNLIMITED = Allowance(
    rules=KeyRules,
    buckets=Buckets(most=1, clock=lambda: 0.0),
    name="",
    refused=lambda _: None,
)
"""Leave for everything."""
