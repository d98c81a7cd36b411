"""The target's tokenizer and chat template, fetched from the verifier by a client that has no draft."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping

from ..protocol.errors import VerifierRefusedError, VerifierUnreachableError
from .chat_template import ChatTemplate
from .prompt import Vocabulary
from .tokenizer import Tokenizer
from .transport import http_url

__all__ = ["fetch_vocabulary"]

_MAX_BYTES = 256 << 20


def fetch_vocabulary(
    url: str, *, eos_ids: tuple[int, ...], headers: Mapping[str, str] | None = None, timeout: float = 10.0
) -> Vocabulary:
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
        template = body["chat_template"]
    except urllib.error.HTTPError as error:
        raise VerifierRefusedError(f"{address} answered {error.code}; give the tokenizer as a folder") from error
    except OSError as error:
        raise VerifierUnreachableError(f"no tokenizer from {address}: {error}; check the address") from error
    except (ValueError, KeyError, TypeError) as error:
        raise VerifierRefusedError(f"{address} sent no tokenizer; give it as a folder") from error
    variables = {"eos_token": tokenizer.id_to_token(eos_ids[0])} if eos_ids else {}
    return Vocabulary(tokenizer, ChatTemplate(template, **variables) if template else None)
