"""The door to the network: the only file that imports aiohttp."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from aiohttp import WSCloseCode, WSMsgType, web

from ..protocol.codes import SUBPROTOCOL
from ..protocol.errors import VerifierError
from ..protocol.messages import Limits
from .connection import Connection
from .engine import Engine
from .target import Target

__all__ = ["VerifierServer"]

logger = logging.getLogger(__name__)

PING_INTERVAL = 20.0
"""Seconds between pings, short enough for proxies that drop connections idle for a minute."""

_OUTGOING_BYTES = 256 * 1024
_FLUSH_SECONDS = 5.0
_GRACE = 64 * 1024


class VerifierServer:
    """Serves an engine: ``/v1/verify`` (WebSocket), ``/v1/models``, ``/v1/tokenizer``, ``/healthz``, ``/readyz``."""

    def __init__(self, engine: Engine, target: Target, *, limits: Limits) -> None:
        self._engine = engine
        self._target = target
        self._limits = limits
        self._peers: set[_Peer] = set()

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
        """Serve until SIGINT or SIGTERM. ``ready`` is told the bound port once connections are taken."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, stop.set)
        runner = web.AppRunner(self.app(), access_log=None, handle_signals=False)
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
            heartbeat=PING_INTERVAL,
            # A little over the limit still reaches the session, whose reply states the limit.
            max_msg_size=self._limits.max_message_bytes + _GRACE,
        )
        await socket.prepare(request)
        await self._converse(socket)
        return socket

    async def _converse(self, socket: web.WebSocketResponse) -> None:
        loop = asyncio.get_running_loop()
        peer = _Peer(socket)
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
                if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
                    break
                if not connection.receive(message.data):
                    break
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
        for peer in list(self._peers):
            await peer.finish(WSCloseCode.GOING_AWAY, b"the verifier is shutting down")


def _schedule(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:  # the loop has closed under a last message
        logger.debug("message dropped: the event loop is closed")


class _Peer:
    """The sending half of one socket: a bounded queue and the task that empties it.

    The bound is in bytes, and far above what a fast target commits while the event loop is busy elsewhere: only a
    reader that does not read comes near it.
    """

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting = 0
        self._stalled = False
        self._writer = asyncio.create_task(self._write())

    def enqueue(self, frame: bytes) -> None:
        """Queue a frame; a reader too slow for the queue's bound is cut off rather than buffered for."""
        if self._stalled:
            return
        self._frames.put_nowait(frame)
        self._waiting += len(frame)
        if self._waiting > _OUTGOING_BYTES:
            self._stalled = True
            self._writer.cancel()

    async def finish(self, code: int, message: bytes) -> None:
        """Let queued frames, a last ERROR among them, leave before the socket closes."""
        self._frames.put_nowait(None)
        _, late = await asyncio.wait([self._writer], timeout=_FLUSH_SECONDS)
        if late:
            self._writer.cancel()
        if not self._socket.closed:
            await self._socket.close(code=code, message=message)

    async def _write(self) -> None:
        try:
            while (frame := await self._frames.get()) is not None:
                await self._socket.send_bytes(frame)
                self._waiting -= len(frame)
        except (ConnectionError, RuntimeError):  # the peer left; the reading side notices as well
            return
        except asyncio.CancelledError:
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, message=b"too slow a reader")
