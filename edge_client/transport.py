"""The door to the network: the only file that imports websockets."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException
from websockets.typing import Subprotocol

from ..protocol.codes import SUBPROTOCOL
from ..protocol.errors import (
    AuthenticationError,
    ConnectionLostError,
    InvalidParameterError,
    VerifierRefusedError,
    VerifierUnreachableError,
    VersionMismatchError,
)

__all__ = ["Transport", "frame_bytes", "http_url", "passes", "seconds_of", "websocket_url"]

VERIFY_PATH = "/v1/verify"
DEFAULT_PORT = 8300
_SCHEMES = {"ws": "ws", "wss": "wss", "http": "ws", "https": "wss"}
_MAX_MESSAGE = 1 << 20
_PING_INTERVAL = 20.0
_FINAL_CODES = frozenset({1002, 1003, 1007, 1009, 1010})
"""Close codes (RFC 6455) that object to what was said: saying it again would end the same way."""


def websocket_url(url: str) -> str:
    """The verifier's WebSocket address. A bare host gets port 8300 and ``/v1/verify``; ``http(s)`` is ``ws(s)``.

    Raises:
        InvalidParameterError: it is no such address.
    """
    if not isinstance(url, str):
        raise InvalidParameterError("url", f"must be text such as ws://host:port, not {url!r}")
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        host = (parts.hostname or "").encode("idna")  # what the resolver will do; it refuses overlong labels
        valid = parts.scheme in _SCHEMES and host and (parts.port is None or parts.port > 0)
        valid = valid and not any(character.isspace() for character in url)
    except ValueError:
        valid = False
    if not valid:
        raise InvalidParameterError("url", f"must look like ws://host:port or wss://host, not {url!r}")
    if parts.username or parts.password:
        raise InvalidParameterError("url", "must not carry a password; give an API key instead")
    path = parts.path if parts.path not in ("", "/") else VERIFY_PATH
    bare = "://" not in url and parts.port is None
    place = f"{parts.netloc}:{DEFAULT_PORT}" if bare else parts.netloc
    return urlunsplit((_SCHEMES[parts.scheme], place, path, parts.query, ""))


def http_url(url: str, path: str) -> str:
    """The address of a plain HTTP resource of the same verifier."""
    parts = urlsplit(websocket_url(url))
    return urlunsplit(({"ws": "http", "wss": "https"}[parts.scheme], parts.netloc, path, "", ""))


def _wire_log() -> logging.Logger:
    """Where websockets tells at level debug what goes over the wire: all but the key."""
    log = logging.getLogger("draftwire.wire")
    if _hide_key not in log.filters:
        log.addFilter(_hide_key)
    return log


def _hide_key(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple) and record.args and str(record.args[0]).lower() == "authorization":
        record.args = (record.args[0], "(hidden)")
    return True


def frame_bytes(payload: int, *, masked: bool) -> int:
    """Bytes of a WebSocket frame (RFC 6455) with ``payload`` bytes; frames of clients are masked."""
    extended = 0 if payload < 126 else 2 if payload < 1 << 16 else 8
    return 2 + extended + (4 if masked else 0) + payload


class Transport:
    """One WebSocket connection to a verifier, in bytes."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    @classmethod
    async def connect(cls, url: str, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0) -> Self:
        """Open a connection.

        Args:
            url: see :func:`websocket_url`.
            headers: sent with the handshake, such as Authorization.
            timeout: seconds for the whole handshake.

        Raises:
            VerifierUnreachableError: nothing answers there, or only by closing the connection.
            AuthenticationError: the API key is not accepted.
            VerifierRefusedError: something answers, and says no: for now, or for good.
            VersionMismatchError: it does not speak this subprotocol.
        """
        address = websocket_url(url)
        try:
            socket = await connect(
                address,
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                additional_headers=dict(headers or {}),
                compression=None,
                open_timeout=timeout,
                ping_interval=_PING_INTERVAL,
                ping_timeout=_PING_INTERVAL,
                close_timeout=2.0,
                max_size=_MAX_MESSAGE,
                user_agent_header="draftwire",
                proxy=None,
                logger=_wire_log(),
            )
        except InvalidURI as error:
            raise InvalidParameterError("url", f"must look like ws://host:port, not {url!r}") from error
        except InvalidStatus as error:
            response = error.response
            retry_after = seconds_of(response.headers.get("Retry-After"))
            raise _refusal(url, response.status_code, bytes(response.body or b""), retry_after) from error
        except ssl.SSLError as error:
            problem = error.reason or str(error)
            advice = "it may not speak TLS: try ws://" if "WRONG_VERSION" in problem else "check its certificate"
            broken = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)  # as when a verifier ends meanwhile
            raise VerifierRefusedError(f"TLS with {url} failed ({problem}); {advice}", retryable=broken) from error
        except TimeoutError as error:
            raise VerifierUnreachableError(f"the verifier at {url} did not answer within {timeout:g} s") from error
        except OSError as error:
            problem = error.strerror or str(error)
            raise VerifierUnreachableError(f"no verifier at {url}: {problem}; check the address") from error
        except (InvalidHandshake, WebSocketException, EOFError) as error:
            raise _no_handshake(url, error) from error
        if socket.subprotocol != SUBPROTOCOL:
            await socket.close()
            raise VersionMismatchError(f"{url} does not speak {SUBPROTOCOL}; update the older end")
        return cls(socket)

    async def send(self, data: bytes) -> None:
        """Send one binary message; ConnectionLostError when the connection is gone."""
        try:
            await self._socket.send(data)
        except (ConnectionClosed, OSError) as error:
            raise _lost(error) from error

    async def receive(self) -> bytes | str:
        """The next message; ConnectionLostError when the connection is gone."""
        try:
            return await self._socket.recv()
        except (ConnectionClosed, OSError) as error:
            raise _lost(error) from error

    async def ping(self) -> float:
        """One round trip of a WebSocket ping, in seconds."""
        try:
            return await (await self._socket.ping())
        except (ConnectionClosed, OSError) as error:
            raise _lost(error) from error

    async def close(self) -> None:
        """Close the connection; fine when it is closed already."""
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def passes(status: int) -> bool:
    """Whether an HTTP status tells of a state that passes: too many requests, a proxy without its server."""
    return status == 429 or status >= 500


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds of a ``Retry-After`` header; None where it has none, or names a date."""
    return float(retry_after) if retry_after is not None and retry_after.strip().isdecimal() else None


def _refusal(
    url: str, status: int, body: bytes, retry_after: float | None
) -> VerifierRefusedError | VersionMismatchError:
    if status == 401:
        return AuthenticationError(f"the verifier at {url} does not accept the API key; check it")
    if status == 403:
        return AuthenticationError(
            f"the verifier at {url} does not let this client in (403); check its API key, Origin header and proxies"
        )
    if status == 400 and b"subprotocol" in body:
        return VersionMismatchError(f"the verifier at {url} does not speak {SUBPROTOCOL}; update the older end")
    if status == 404:
        return VerifierRefusedError(_not_there(url))
    if status == 503:
        problem = f"the verifier at {url} is not ready (503); try again soon"
    elif status == 429:
        problem = f"the verifier at {url} has too many requests (429); try again later"
    else:
        problem = f"{url} refused the connection with status {status}; check the address"
    return VerifierRefusedError(problem, retryable=passes(status), retry_after=retry_after)


def _not_there(url: str) -> str:
    path = urlsplit(websocket_url(url)).path
    if path == VERIFY_PATH:
        return f"{url} is not a verifier (404); check host and port"
    if path.startswith(f"{VERIFY_PATH}/"):
        route = path.removeprefix(f"{VERIFY_PATH}/")
        return f"there is no route {route!r} at {url} (404); leave it out, or have the verifier set it up"
    return f"there is no verifier at the path {path} of {url} (404); leave it out for {VERIFY_PATH}"


def _no_handshake(url: str, error: Exception) -> VerifierUnreachableError | VerifierRefusedError:
    """Not the error's own text: it may repeat a header, and headers hold the key."""
    if isinstance(error, EOFError) or isinstance(error.__cause__, EOFError):
        return VerifierUnreachableError(
            f"{url} closed the connection without an answer; is the verifier behind it running yet?"
        )
    return VerifierRefusedError(f"{url} is not a verifier: it answers in another protocol; check the address")


def _lost(error: Exception) -> ConnectionLostError:
    reason, retryable = "closed", True
    if isinstance(error, ConnectionClosed) and error.rcvd is not None:
        reason = f"closed by the verifier ({error.rcvd.code} {error.rcvd.reason})".replace(" )", ")")
        retryable = error.rcvd.code not in _FINAL_CODES
    elif isinstance(error, ConnectionClosed):
        reason = "broke off"
    return ConnectionLostError(
        f"the connection {reason}; what was committed has been delivered, generate again", retryable=retryable
    )
