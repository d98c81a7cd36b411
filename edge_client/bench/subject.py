"""Whom the benchmark measures, and how it is reached: directly, or over an emulated network."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from ...protocol.errors import DrafterError, InvalidParameterError
from ...protocol.messages import Welcome
from ..client import AsyncEdgeClient
from ..prompt import Vocabulary
from ..transport import websocket_url
from ..wan_relay import WanRelay
from .conditions import Net
from .prompts import BenchPrompt

__all__ = ["Subject", "check_address", "meet", "reached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom to measure: the verifier at ``url`` with the draft in a folder on ``threads`` cores."""

    url: str
    draft: str
    threads: int
    api_key: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Of a client that fails rather than go on without the draft."""
        return {
            "draft": self.draft,
            "threads": self.threads,
            "api_key": self.api_key,
            "require_draft": True,
            "timeout": 60.0,
        }

    def client(self, url: str) -> AsyncEdgeClient:
        """Such a client."""
        return AsyncEdgeClient(url, **self.options)


async def meet(client: AsyncEdgeClient, prompts: Iterable[BenchPrompt]) -> tuple[Welcome, dict[str, list[int]]]:
    """Connect, and wait for the draft.

    Returns:
        What the verifier says of itself, and the prompts' token ids by name.

    Raises:
        DraftwireError: verifier and draft cannot be used together.
    """
    welcome = await client.connect()
    status = await client.wait_for_draft()
    if status.mode != "drafting" or client.device is None:
        raise DrafterError(status.reason or "the draft is not in use")
    bundle = client.device.bundle
    vocabulary = Vocabulary(bundle.tokenizer, bundle.chat_template)
    ids: dict[str, list[int]] = {}
    for prompt in prompts:
        asked = prompt.text if bundle.chat_template is None else [{"role": "user", "content": prompt.text}]
        ids[prompt.name] = vocabulary.encode(asked, size=welcome.vocabulary_size)
    return welcome, ids


def check_address(url: str, nets: Iterable[Net]) -> None:
    """The relay passes bytes on, and a certificate is for the verifier's own name.

    Raises:
        InvalidParameterError: ``url`` cannot be reached over an emulated network.
    """
    if urlsplit(websocket_url(url)).scheme != "ws" and any(net.emulated for net in nets):
        raise InvalidParameterError("--url", "must be ws:// for a network to be emulated; use --rtt 0 with wss://")


@contextlib.asynccontextmanager
async def reached(url: str, net: Net, *, seed: int) -> AsyncIterator[str]:
    """An address at which the verifier is reached over ``net``; its own where nothing is to be emulated."""
    if not net.emulated:
        yield url
        return
    parts = urlsplit(websocket_url(url))
    async with WanRelay(parts.hostname or "", parts.port or 80, conditions=net.relayed, seed=seed) as relay:
        yield parts._replace(netloc=f"127.0.0.1:{relay.port}").geturl()
