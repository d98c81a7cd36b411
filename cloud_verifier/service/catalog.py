"""What the verifier serves, for whoever asks: ``/v1/models``, ``/v1/tokenizer``."""

from __future__ import annotations

import time

from ..targets.target import Target, TargetInfo
from .http import Call, Reply, Route, json_reply

__all__ = ["Catalog", "model_card"]

_SERVED_SINCE = int(time.time())


def model_card(info: TargetInfo, *, max_context: int) -> dict[str, object]:
    """A target as ``/v1/models`` lists it, in OpenAI's form and beyond; ``created`` is when it began to be served."""
    return {
        "id": info.name,
        "object": "model",
        "created": _SERVED_SINCE,
        "owned_by": "draftwire",
        "max_context": max_context,
        "vocabulary_size": info.vocabulary_size,
        "fingerprint": info.fingerprint.hex(),
        "eos_ids": list(info.eos_ids),
        "dtype": info.dtype,
        "device": info.device,
    }


class Catalog:
    """Describes a target.

    Args:
        target: what is served.
        max_context: most tokens of a stream, as clients are promised.
    """

    def __init__(self, target: Target, *, max_context: int) -> None:
        self._target = target
        self._max_context = max_context

    def routes(self) -> list[Route]:
        """The endpoints."""
        return [
            Route(method="GET", path="/v1/models", handler=self._models),
            Route(method="GET", path="/v1/tokenizer", handler=self._tokenizer),
        ]

    async def _models(self, call: Call) -> Reply:
        del call
        model = model_card(self._target.info, max_context=self._max_context)
        return json_reply({"object": "list", "data": [model]})

    async def _tokenizer(self, call: Call) -> Reply:
        """For clients that have no draft: what they need to turn text into the target's tokens and back."""
        etag = f'"{self._target.info.fingerprint.hex()}"'
        if call.headers.get("if-none-match") == etag:
            return Reply(status=304)
        body = {
            "tokenizer": self._target.tokenizer_json,
            "chat_template": self._target.chat_template,
            "special_tokens": dict(self._target.special_tokens),
        }
        return json_reply(body, headers={"ETag": etag})
