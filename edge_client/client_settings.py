"""What a client is told once, checked where it is given; and the arguments' types, for editors and type checkers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypedDict

from ..protocol.errors import InvalidParameterError
from .gamma.choice import ControllerName
from .onnx_runtime import DEFAULT_PROVIDERS, check_providers, check_threads
from .options import PolicyName
from .transport import websocket_url

__all__ = ["ClientArguments", "ClientSettings", "GenerationArguments"]


class GenerationArguments(TypedDict, total=False):
    """Options of a generation by name; see :class:`~.options.GenerationOptions` and
    :class:`~draftwire.protocol.sampling.SamplingParams`.
    """

    max_tokens: int | None
    seed: int | None
    controller: ControllerName
    look_ahead: int | None
    policy: PolicyName
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | Iterable[tuple[int, float]]
    mode: Literal["coupled", "rejection"]


class ClientArguments(GenerationArguments, total=False):
    """Options of a client by name; see :class:`~.client.AsyncEdgeClient`."""

    draft: str | PathLike[str] | None
    tokenizer: str | PathLike[str] | None
    api_key: str | None
    threads: int | None
    providers: Sequence[str]
    pause_drafting: Callable[[], bool] | None
    require_draft: bool
    retain_context: bool
    timeout: float
    figures: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Checked settings. ``url`` stays as it was given, for messages; ``headers`` hold the key and are never shown."""

    url: str
    draft: Path | None
    tokenizer: Path | None
    headers: Mapping[str, str] = field(repr=False)
    threads: int | None
    providers: tuple[str, ...]
    paused: Callable[[], bool]
    require_draft: bool
    retain_context: bool
    timeout: float

    @classmethod
    def of(
        cls,
        url: str,
        *,
        draft: str | PathLike[str] | None,
        tokenizer: str | PathLike[str] | None,
        api_key: str | None,
        threads: int | None,
        providers: Sequence[str] = DEFAULT_PROVIDERS,
        pause_drafting: Callable[[], bool] | None,
        require_draft: bool,
        retain_context: bool,
        timeout: float,
    ) -> ClientSettings:
        """Check every argument.

        Raises:
            InvalidParameterError: naming the first that cannot be used.
        """
        websocket_url(url)
        check_threads(threads)
        if require_draft and draft is None:
            raise InvalidParameterError("require_draft", "needs a draft; give its folder as draft")
        if pause_drafting is not None and not callable(pause_drafting):
            raise InvalidParameterError("pause_drafting", "must be a function that returns whether to pause")
        return cls(
            url=url,
            draft=_path("draft", draft),
            tokenizer=_path("tokenizer", tokenizer),
            headers=_headers(api_key),
            threads=threads,
            providers=tuple(check_providers(providers)),
            paused=pause_drafting or _never,
            require_draft=bool(require_draft),
            retain_context=bool(retain_context),
            timeout=_seconds(timeout),
        )


def _never() -> bool:
    return False


def _path(name: str, value: str | PathLike[str] | None) -> Path | None:
    if value is None:
        return None
    if not isinstance(value, str | PathLike) or not str(value):
        raise InvalidParameterError(name, f"must be a path, not {value!r}")
    return Path(value)


def _headers(api_key: str | None) -> dict[str, str]:
    """The key in a header. The error does not repeat it: errors are shown and logged."""
    if api_key is None or api_key == "":
        return {}
    if not isinstance(api_key, str) or not all("!" <= character <= "~" for character in api_key):
        raise InvalidParameterError("api_key", "must be visible ASCII characters without spaces or line ends")
    return {"Authorization": f"Bearer {api_key}"}


def _seconds(value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InvalidParameterError("timeout", f"must be a number of seconds above 0, not {value!r}")
    return float(value)
