"""The door to the network: the only file that imports aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket as sockets
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web

from ..protocol.codes import SUBPROTOCOL
from ..protocol.errors import VerifierError
from ..protocol.messages import Limits
from .connection import Connection
from .engine import Engine
from .peer import Peer
from .target import Target

__all__ = ["VerifierServer"]

logger = logging.getLogger(__name__)

_GRACE = 64 * 1024
_SEND_BUFFER = 32 * 1024
"""Bytes of a socket's commits that the kernel may hold: thousands of them, where a step makes one of ten bytes."""
_REQUEST_SECONDS = 1.0
"""How long plain requests have to end in a shutdown; by then clients have been told, and their sockets closed."""


class VerifierServer:
    """Serves an engine: ``/v1/verify`` (WebSocket), ``/v1/models``, ``/v1/tokenizer``, ``/healthz``, ``/readyz``."""

    def __init__(self, engine: Engine, target: Target, *, limits: Limits) -> None:
        self._engine = engine
        self._target = target
        self._limits = limits
        self._peers: set[Peer] = set()

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application()
        app.router.add_get("/v1/verify", self._verify)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/tokenizer", self._tokenizer)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.on_shutdown.append(self._shut_down)
        return app

    async def serve(self, host: str, port: int, *, ready: Callable[[int], None]) -> None:
        """Serve until SIGINT or SIGTERM; a second one ends the process at once.

        ``ready`` is told the bound port once connections are taken.
        """
        stop = asyncio.Event()
        _catch_signals(stop)
        runner = web.AppRunner(self.app(), access_log=None, handle_signals=False, shutdown_timeout=_REQUEST_SECONDS)
        await runner.setup()
        try:
            site = web.TCPSite(runner, host, port)
            try:
                await site.start()
            except OSError as error:
                raise VerifierError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
            ready(runner.addresses[0][1])
            await stop.wait()
        finally:
            await runner.cleanup()

    # --- the WebSocket ------------------------------------------------------------------------------------------

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        if SUBPROTOCOL not in [name.strip() for name in offered.split(",")]:
            return web.json_response(
                {"error": f"this endpoint speaks the WebSocket subprotocol {SUBPROTOCOL}; offer it"}, status=400
            )
        socket = web.WebSocketResponse(
            protocols=(SUBPROTOCOL,),
            compress=False,
            autoping=False,  # a peer pings, and knows when no pong can be expected
            # A little over the limit still reaches the session, whose reply states the limit.
            max_msg_size=self._limits.max_message_bytes + _GRACE,
        )
        await socket.prepare(request)
        await self._converse(socket, request.transport)
        return socket

    async def _converse(self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None) -> None:
        loop = asyncio.get_running_loop()
        peer = Peer(_Socket(socket, transport), lost=lambda: connection.closed())
        self._peers.add(peer)
        connection = Connection(
            self._engine,
            self._target.info,
            self._limits,
            send=peer.enqueue,
            schedule=lambda action: _schedule(loop, action),
        )
        try:
            async for message in socket:
                if not await _hear(message, socket, connection, peer):
                    break
        except ConnectionError:  # it left while a pong was on its way
            pass
        finally:
            connection.closed()
            self._peers.discard(peer)
            await peer.finish(WSCloseCode.PROTOCOL_ERROR, b"")

    # --- plain HTTP ---------------------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        del request
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        del request
        if self._engine.running:
            return web.Response(text="ready\n")
        return web.Response(text="the engine is not running\n", status=503)

    async def _models(self, request: web.Request) -> web.Response:
        del request
        info = self._target.info
        model = {
            "id": info.name,
            "object": "model",
            "owned_by": "draftwire",
            "max_context": self._limits.max_context,
            "vocabulary_size": info.vocabulary_size,
            "fingerprint": info.fingerprint.hex(),
            "eos_ids": list(info.eos_ids),
            "dtype": info.dtype,
            "device": info.device,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def _tokenizer(self, request: web.Request) -> web.Response:
        """For clients that have no draft: what they need to turn text into the target's tokens and back."""
        etag = self._target.info.fingerprint.hex()
        if request.headers.get("If-None-Match") == f'"{etag}"':
            return web.Response(status=304)
        body = {
            "tokenizer": self._target.tokenizer_json,
            "chat_template": self._target.chat_template,
            "special_tokens": dict(self._target.special_tokens),
        }
        return web.json_response(body, headers={"ETag": f'"{etag}"'})

    async def _shut_down(self, app: web.Application) -> None:
        del app
        await asyncio.get_running_loop().run_in_executor(None, self._engine.stop)
        reason = b"the verifier is shutting down"
        await asyncio.gather(*(peer.finish(WSCloseCode.GOING_AWAY, reason) for peer in list(self._peers)))


def _catch_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    names = (signal.SIGINT, signal.SIGTERM)

    def caught() -> None:
        for name in names:
            loop.remove_signal_handler(name)
            signal.signal(name, signal.SIG_DFL)
        stop.set()

    for name in names:
        loop.add_signal_handler(name, caught)


def _schedule(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:  # the loop has closed under a last message
        logger.debug("message dropped: the event loop is closed")


async def _hear(message: WSMessage, socket: web.WebSocketResponse, connection: Connection, peer: Peer) -> bool:
    """Take what a socket says. False when it is to be closed."""
    if message.type is WSMsgType.PING:
        await socket.pong(message.data)
    elif message.type is WSMsgType.PONG:
        peer.pong()
    elif message.type not in (WSMsgType.BINARY, WSMsgType.TEXT) or not connection.receive(message.data):
        return False
    if connection.crowded:
        room = asyncio.Event()
        connection.when_room(room.set)
        with peer.holding():
            await room.wait()
    return True


class _Socket:
    """An aiohttp WebSocket as a peer sees it; see :class:`~.peer.Socket`."""

    def __init__(self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None) -> None:
        self._socket = socket
        self._transport = transport
        _limit_buffer(transport)

    async def send(self, frame: bytes) -> None:
        await self._socket.send_bytes(frame)

    async def ping(self) -> None:
        await self._socket.ping()

    async def close(self, code: int, reason: bytes) -> None:
        if not self._socket.closed:
            await self._socket.close(code=code, message=reason)

    def abort(self) -> None:
        if isinstance(self._transport, asyncio.WriteTransport):
            self._transport.abort()


def _limit_buffer(transport: asyncio.BaseTransport | None) -> None:
    """Keep the kernel from taking megabytes for a reader that has stalled: it is noticed the later for it."""
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)
