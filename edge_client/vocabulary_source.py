"""The target's tokenizer and chat template for a client that has no draft: from the verifier, or from a folder."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..protocol.errors import (
    BundleCorruptError,
    FingerprintMismatchError,
    VerifierRefusedError,
    VerifierUnreachableError,
)
from .bundle import CHAT_TEMPLATE_NAME
from .chat_template import ChatTemplate
from .connection import VerifierConnection
from .prompt import Vocabulary
from .tokenizer import Tokenizer
from .transport import http_url, passes, seconds_of

__all__ = ["VocabularySource", "fetch_vocabulary", "read_vocabulary"]

_MAX_BYTES = 256 << 20


class VocabularySource:
    """The target's vocabulary from a folder where one was given, else from the verifier itself; kept once read.

    Args:
        folder: see :func:`read_vocabulary`.
        headers, timeout: see :func:`fetch_vocabulary`.
    """

    def __init__(self, folder: Path | None, *, headers: Mapping[str, str], timeout: float) -> None:
        self._folder = folder
        self._headers = headers
        self._timeout = timeout
        self._known: tuple[bytes, Vocabulary] | None = None
        self._reading = asyncio.Lock()

    async def of(self, connection: VerifierConnection) -> Vocabulary:
        """The vocabulary of the target behind a connection.

        Raises:
            FingerprintMismatchError: the one in the folder is another.
            DraftwireError: see :func:`fetch_vocabulary` and :func:`read_vocabulary`.
        """
        fingerprint = connection.welcome.fingerprint
        async with self._reading:  # it may be megabytes; streams that begin together need it once
            if self._known is None or self._known[0] != fingerprint:
                self._known = (fingerprint, await self._read(connection))
            return self._known[1]

    async def _read(self, connection: VerifierConnection) -> Vocabulary:
        if self._folder is None:
            return await asyncio.to_thread(
                fetch_vocabulary, connection.url, headers=self._headers, timeout=self._timeout
            )
        vocabulary = await asyncio.to_thread(read_vocabulary, self._folder)
        if vocabulary.tokenizer.fingerprint != connection.welcome.fingerprint:
            raise FingerprintMismatchError(
                f"the tokenizer at {self._folder} is not that of {connection.welcome.target}; "
                "leave it out to use the verifier's"
            )
        return vocabulary


def fetch_vocabulary(url: str, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0) -> Vocabulary:
    """Ask ``/v1/tokenizer`` of the verifier at ``url``; blocks.

    Raises:
        VerifierUnreachableError, VerifierRefusedError: it does not answer, or not with a tokenizer.
    """
    address = http_url(url, "/v1/tokenizer")
    request = urllib.request.Request(address, headers=dict(headers or {}))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as response:
            body = json.loads(response.read(_MAX_BYTES))
        tokenizer = Tokenizer.from_json(body["tokenizer"])
        template, special_tokens = body["chat_template"], dict(body.get("special_tokens", {}))
    except urllib.error.HTTPError as error:
        with error:  # it holds the socket
            raise VerifierRefusedError(
                f"{address} answered {error.code}; give the tokenizer as a folder",
                retryable=passes(error.code),
                retry_after=seconds_of(error.headers.get("Retry-After")),
            ) from error
    except OSError as error:
        raise VerifierUnreachableError(f"no tokenizer from {address}: {error}; check the address") from error
    except (ValueError, KeyError, TypeError, http.client.HTTPException) as error:
        raise VerifierRefusedError(f"{address} sent no tokenizer; give it as a folder") from error
    return Vocabulary(tokenizer, ChatTemplate(template, **special_tokens) if template else None)


def read_vocabulary(path: Path) -> Vocabulary:
    """Read ``tokenizer.json``, and the template and names that lie beside it; blocks.

    Args:
        path: a Hugging Face or bundle folder, or a ``tokenizer.json``.

    Raises:
        BundleNotFoundError, BundleCorruptError: it is missing, or no tokenizer.
    """
    folder = path if path.is_dir() else path.parent
    tokenizer = Tokenizer.from_file(path)
    try:
        config = json.loads(_text(folder / "tokenizer_config.json") or "{}")
        source = _text(folder / CHAT_TEMPLATE_NAME) or config.get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise BundleCorruptError(f"the tokenizer's files in {folder} cannot be read: {error}") from error
    if not isinstance(source, str):
        return Vocabulary(tokenizer, None)
    return Vocabulary(tokenizer, ChatTemplate(source, **_special_tokens(config)))


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token`` and the like, each a text or an object that holds it."""
    texts = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            texts[name] = text
    return texts
