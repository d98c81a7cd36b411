"""The door to the network: the only file that imports aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket as sockets
import ssl
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from ...protocol.codes import SUBPROTOCOL
from ...protocol.errors import VerifierError
from ...protocol.messages import Limits
from ..engine.engine import Engine
from ..targets.target import Target
from .catalog import Catalog
from .connection import Connection
from .crowd import Guest
from .doorkeeper import Doorkeeper
from .health import Health
from .http import Call, Refusal, Reply, Route, Visitor, plain_refusal
from .lobby import Lobby
from .peer import Peer
from .signals import caught_signal
from .usher import see_out

__all__ = ["VerifierServer"]

logger = logging.getLogger(__name__)

_GRACE = 64 * 1024
_SEND_BUFFER = 32 * 1024
"""Bytes of a socket's commits that the kernel may hold: thousands of them, where a step makes one of ten bytes."""
_REQUEST_SECONDS = 1.0
"""How long plain requests have to end in a shutdown; by then clients have been told, and their sockets closed."""
_DRAIN_LOOK = 0.05
_LOBBY_LOOK = 1.0
_BODY_SECONDS = 30.0
"""How long the body of a request may take to come in."""
_WRITE_SECONDS = 20.0
"""How long a caller may leave a piece of an answer unread."""
_KEEP_ALIVE_SECONDS = 75.0
"""How long a plain HTTP connection may be without a request: longer than common proxies keep theirs."""


class VerifierServer:
    """Serves an engine: ``/v1/verify`` (WebSocket) and plain HTTP endpoints.

    Args:
        engine: running.
        target: what the engine serves.
        limits: what clients are promised.
        doorkeeper: who may come in; everybody by default.
        routes: endpoints beside those of :class:`Catalog` and :class:`Health`.
        health: see there.
        drain_seconds: how long running streams may go on after SIGTERM.
    """

    def __init__(
        self,
        engine: Engine,
        target: Target,
        *,
        limits: Limits,
        doorkeeper: Doorkeeper | None = None,
        routes: Sequence[Route] = (),
        health: Health | None = None,
        drain_seconds: float = 30.0,
    ) -> None:
        self._engine = engine
        self._target = target
        self._limits = limits
        self._doorkeeper = doorkeeper or Doorkeeper()
        catalog = Catalog(target, max_context=limits.max_context)
        self._routes = [*(health or Health(engine)).routes(), *catalog.routes(), *routes]
        self._drain_seconds = drain_seconds
        self._peers: set[Peer] = set()
        self._arrived: weakref.WeakSet[asyncio.BaseTransport] = weakref.WeakSet()  # those that have sent a request

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=self._limits.max_message_bytes * 8)
        app.router.add_get("/v1/verify", self._verify)
        app.router.add_get("/v1/verify/{route}", self._verify)
        for route in self._routes:
            app.router.add_route(route.method, route.path, self._answerer(route))
        for path in dict.fromkeys(route.path for route in self._routes):
            app.router.add_route("OPTIONS", path, self._preflight([each for each in self._routes if each.path == path]))
        app.on_shutdown.append(self._shut_down)
        return app

    async def serve(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[int], None],
        tls: ssl.SSLContext | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        """Serve until a signal. SIGTERM lets running streams finish for a while, SIGINT ends them; a second signal
        ends the process at once. SIGHUP calls ``reload``, where one is given.

        ``ready`` is told the bound port once connections are taken.
        """
        stop = caught_signal(reload=reload)
        async with self.listening(host, port, tls=tls) as bound:
            ready(bound)
            if await stop is signal.SIGTERM:
                await self._drain()

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        """Take connections meanwhile; yields the bound port. VerifierError where the address cannot be had."""
        runner = web.AppRunner(
            self.app(),
            access_log=None,
            logger=_fault_log(),
            handle_signals=False,
            handler_cancellation=True,  # whoever leaves stops what was being done for it
            shutdown_timeout=_REQUEST_SECONDS,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        await runner.setup()
        lobby = asyncio.create_task(self._watch_lobby(runner))
        try:
            site = web.TCPSite(runner, host, port, ssl_context=tls)
            try:
                await site.start()
            except OSError as error:
                raise VerifierError(f"cannot listen on {host}:{port}: {error.strerror}; choose another port") from None
            yield runner.addresses[0][1]
        finally:
            lobby.cancel()
            await runner.cleanup()

    async def _watch_lobby(self, runner: web.AppRunner) -> None:
        """Show out the sockets that send no request, or only a trickle of one."""
        lobby = Lobby[asyncio.Transport]()
        while True:
            await asyncio.sleep(_LOBBY_LOOK)
            limits = self._doorkeeper.config.limits
            transports = [each.transport for each in runner.server.connections] if runner.server is not None else []
            silent = [each for each in transports if each is not None and each not in self._arrived]
            now = asyncio.get_running_loop().time()
            for each in lobby.look(silent, now, patience=limits.hello_seconds, most=limits.max_connections):
                each.abort()

    def _note_arrival(self, transport: asyncio.BaseTransport | None) -> None:
        if transport is not None:
            self._arrived.add(transport)

    async def _drain(self) -> None:
        """Take no new streams, and let those that run finish, within the time there is."""
        self._engine.drain()
        until = asyncio.get_running_loop().time() + self._drain_seconds
        logger.info("draining: %d streams have %g s to finish", self._engine.active_streams, self._drain_seconds)
        while self._engine.active_streams and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(_DRAIN_LOOK)

    # --- the WebSocket ------------------------------------------------------------------------------------------

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        self._note_arrival(request.transport)
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        if SUBPROTOCOL not in [name.strip() for name in offered.split(",")]:
            return web.json_response(
                {"error": f"this endpoint speaks the WebSocket subprotocol {SUBPROTOCOL}; offer it"}, status=400
            )
        try:
            if self._engine.draining:
                raise Refusal(503, "the verifier is shutting down; connect to another", retry_after=1.0)
            visitor = self._admit(request, request.match_info.get("route", ""))
            with self._doorkeeper.connected(visitor) as guest:
                socket = web.WebSocketResponse(
                    protocols=(SUBPROTOCOL,),
                    compress=False,
                    autoping=False,  # a peer pings, and knows when no pong can be expected
                    # A little over the limit still reaches the session, whose reply states the limit.
                    max_msg_size=self._limits.max_message_bytes + _GRACE,
                )
                socket.headers["X-Request-Id"] = visitor.request_id
                await socket.prepare(request)
                await self._converse(socket, request.transport, visitor, guest)
                return socket
        except Refusal as refusal:
            return _whole(plain_refusal(refusal), {})
        except ConnectionError:  # it left before the handshake was over
            return web.Response()

    async def _converse(
        self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None, visitor: Visitor, guest: Guest
    ) -> None:
        loop = asyncio.get_running_loop()
        peer = Peer(_Socket(socket, transport), lost=lambda: connection.closed())
        self._peers.add(peer)
        connection = Connection(
            self._engine,
            self._target.info,
            self._limits,
            visitor=visitor,
            idleness=self._doorkeeper.idleness(),
            send=peer.enqueue,
            schedule=lambda action: _schedule(loop, action),
        )
        usher = asyncio.create_task(see_out(connection, peer, guest))
        try:
            async for message in socket:
                if not await _hear(message, socket, connection, peer):
                    break
        except ConnectionError:  # it left while a pong was on its way
            pass
        finally:
            connection.closed()
            self._peers.discard(peer)
            if not connection.dismissed:
                usher.cancel()
            try:
                await asyncio.wait([usher])
            finally:  # the connection may be lost meanwhile, and this task cancelled
                await peer.finish(WSCloseCode.PROTOCOL_ERROR, b"")

    # --- plain HTTP ---------------------------------------------------------------------------------------------

    def _admit(self, request: web.Request, route: str = "") -> Visitor:
        return self._doorkeeper.admit(
            _lower(request.headers), remote=request.remote or "", route=route, query=request.query
        )

    def _answerer(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """What aiohttp calls for a route: a call in, a reply out."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self._note_arrival(request.transport)
            headers = self._doorkeeper.cross_origin(_lower(request.headers))
            try:
                if route.public:
                    return await respond(request, Visitor(remote=request.remote or ""), headers)
                visitor = self._admit(request)
                headers["X-Request-Id"] = visitor.request_id
                with self._doorkeeper.connected(visitor) as guest:
                    guest.when_dismissed(_cancel_this())
                    return await respond(request, visitor, headers)
            except Refusal as refusal:
                return _whole(route.refuse(refusal), headers)

        async def respond(request: web.Request, visitor: Visitor, headers: dict[str, str]) -> web.StreamResponse:
            reply = await route.handler(await _call(request, visitor))
            if isinstance(reply.body, bytes):
                return _whole(reply, headers)
            return await _stream(request, reply, reply.body, headers)

        return answer

    def _preflight(self, routes: Sequence[Route]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Answers a browser that asks whether a page may call the routes of one path."""
        methods = ", ".join(route.method for route in routes)

        async def answer(request: web.Request) -> web.StreamResponse:
            self._note_arrival(request.transport)
            try:
                headers = self._doorkeeper.preflight(_lower(request.headers), methods=methods)
                return web.Response(status=204, headers=headers)
            except Refusal as refusal:
                return _whole(routes[0].refuse(refusal), {})

        return answer

    async def _shut_down(self, app: web.Application) -> None:
        del app
        await asyncio.get_running_loop().run_in_executor(None, self._engine.stop)
        reason = b"the verifier is shutting down"
        await asyncio.gather(*(peer.finish(WSCloseCode.GOING_AWAY, reason) for peer in list(self._peers)))


class _OurFaults(logging.Filter):
    """Keeps requests that are malformed or cut short out of the log: no fault of ours, and they may hold a key."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, HttpProcessingError | web.HTTPException | ConnectionError)


def _fault_log() -> logging.Logger:
    log = logging.getLogger(f"{__name__}.http")
    if not log.filters:
        log.addFilter(_OurFaults())
    return log


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


async def _call(request: web.Request, visitor: Visitor) -> Call:
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise Refusal(408, f"the request's body did not come within {_BODY_SECONDS:g} s; send it again") from error
    except web.HTTPRequestEntityTooLarge as error:
        raise Refusal(413, f"the request is larger than {request.client_max_size} bytes; shorten it") from error
    return Call(method=request.method, path=request.path, headers=_lower(request.headers), body=body, visitor=visitor)


def _whole(reply: Reply, headers: Mapping[str, str]) -> web.Response:
    assert isinstance(reply.body, bytes)
    fields = {**headers, **reply.headers, "Content-Type": reply.content_type}
    return web.Response(body=reply.body, status=reply.status, headers=fields)


async def _stream(
    request: web.Request, reply: Reply, pieces: AsyncIterator[bytes], headers: Mapping[str, str]
) -> web.StreamResponse:
    fields = {**headers, **reply.headers, "Content-Type": reply.content_type}
    response = web.StreamResponse(status=reply.status, headers=fields)
    try:
        await response.prepare(request)
        _limit_buffer(request.transport)
        async for piece in pieces:
            await _write(response, piece, request.transport)
        await response.write_eof()
    except ConnectionError:  # it left; closing the pieces stops what made them
        pass
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
    return response


async def _write(response: web.StreamResponse, piece: bytes, transport: asyncio.BaseTransport | None) -> None:
    """Write to a caller, and let go of one that does not read."""
    try:
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.write(piece)
    except TimeoutError:
        logger.info("a caller is cut off: it does not read")
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()
        raise ConnectionResetError("it does not read") from None


def _schedule(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(action)
    except RuntimeError:  # the loop has closed under a last message
        logger.debug("message dropped: the event loop is closed")


def _cancel_this() -> Callable[[str], None]:
    """Ends the call under way in this task."""
    task = asyncio.current_task()

    def cancel(why: str) -> None:
        if task is not None:
            task.cancel(why)

    return cancel


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
        # Bound to the transport, which lets go of everything once it is closed: who means to abort it later holds
        # no more than that.
        self.abort = transport.abort if isinstance(transport, asyncio.WriteTransport) else _nothing
        _limit_buffer(transport)

    async def send(self, frame: bytes) -> None:
        await self._socket.send_bytes(frame)

    async def ping(self) -> None:
        await self._socket.ping()

    async def close(self, code: int, reason: bytes) -> None:
        if not self._socket.closed:
            await self._socket.close(code=code, message=reason)


def _nothing() -> None:
    """There is no transport."""


def _limit_buffer(transport: asyncio.BaseTransport | None) -> None:
    """Keep the kernel from taking megabytes for a reader that has stalled: it is noticed the later for it."""
    raw = transport.get_extra_info("socket") if transport is not None else None
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDBUF, _SEND_BUFFER)
