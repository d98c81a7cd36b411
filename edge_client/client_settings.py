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

__all__ = ["LOSS_POLICIES", "ClientArguments", "ClientSettings", "GenerationArguments", "LossPolicy"]

LossPolicy = Literal["raise", "draft_only"]
"""What becomes of an answer when its verifier is lost and none can be found."""

LOSS_POLICIES: tuple[LossPolicy, ...] = ("raise", "draft_only")


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
    reconnect_seconds: float | None
    wait_when_busy: bool
    on_verifier_loss: LossPolicy
    figures: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Checked settings. ``urls`` stay as they were given, for messages; ``headers`` hold the key, and are not shown."""

    urls: tuple[str, ...]
    draft: Path | None
    tokenizer: Path | None
    headers: Mapping[str, str] = field(repr=False)
    threads: int | None
    providers: tuple[str, ...]
    paused: Callable[[], bool]
    require_draft: bool
    retain_context: bool
    timeout: float
    reconnect_seconds: float | None
    wait_when_busy: bool
    on_verifier_loss: LossPolicy

    @classmethod
    def of(
        cls,
        url: str | Sequence[str],
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
        reconnect_seconds: float | None = None,
        wait_when_busy: bool = True,
        on_verifier_loss: LossPolicy = "raise",
    ) -> ClientSettings:
        """Check every argument.

        Raises:
            InvalidParameterError: naming the first that cannot be used.
        """
        check_threads(threads)
        if require_draft and draft is None:
            raise InvalidParameterError("require_draft", "needs a draft; give its folder as draft")
        if pause_drafting is not None and not callable(pause_drafting):
            raise InvalidParameterError("pause_drafting", "must be a function that returns whether to pause")
        if on_verifier_loss not in LOSS_POLICIES:
            raise InvalidParameterError(
                "on_verifier_loss", f"must be 'raise' or 'draft_only', not {on_verifier_loss!r}"
            )
        if on_verifier_loss == "draft_only" and draft is None:
            raise InvalidParameterError("on_verifier_loss", "needs a draft to go on with; give its folder as draft")
        return cls(
            urls=_urls(url),
            draft=_path("draft", draft),
            tokenizer=_path("tokenizer", tokenizer),
            headers=_headers(api_key),
            threads=threads,
            providers=tuple(check_providers(providers)),
            paused=pause_drafting or _never,
            require_draft=bool(require_draft),
            retain_context=bool(retain_context),
            timeout=_seconds("timeout", timeout),
            reconnect_seconds=None
            if reconnect_seconds is None
            else _seconds("reconnect_seconds", reconnect_seconds, 0),
            wait_when_busy=bool(wait_when_busy),
            on_verifier_loss=on_verifier_loss,
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


def _urls(given: str | Sequence[str]) -> tuple[str, ...]:
    """One address, or several; one that is given twice counts once."""
    urls = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if not urls:
        raise InvalidParameterError("url", "names no verifier; give at least one address")
    for url in urls:
        websocket_url(url)
    return tuple(dict.fromkeys(urls))


def _seconds(name: str, value: float, least: float | None = None) -> float:
    """A finite number of seconds: above 0, or from ``least``."""
    valid = not isinstance(value, bool) and isinstance(value, int | float) and value < math.inf
    if not valid or not (value > 0 if least is None else value >= least):
        bound = "above 0" if least is None else f"from {least:g}"
        raise InvalidParameterError(name, f"must be a number of seconds {bound}, not {value!r}")
    return float(value)
