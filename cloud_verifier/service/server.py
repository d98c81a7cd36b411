"""The door to the network: sockets in, frames and replies out. It and :mod:`.exchange` alone import aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from ...protocol.codes import SUBPROTOCOL
from ...protocol.messages import Limits
from ..engine.engine import Engine
from ..targets.target import Target
from .catalog import Catalog
from .connection import Connection, in_thread_of
from .crowd import Guest, cancelling
from .doorkeeper import Doorkeeper
from .entrance import Entrance
from .exchange import Anywhere, linger, read_body, say_nothing_yet, send_whole, stream_response, whole_response
from .health import Health
from .http import Call, Refusal, Route, Visitor, lower_names, plain_refusal
from .peer import Peer
from .sending import limit_buffer
from .signals import caught_signal, drain
from .usher import see_out
from .visit import KEEP_ALIVE_SECONDS, Visit, aborter

__all__ = ["VerifierServer"]

logger = logging.getLogger(__name__)

_BAD_HANDSHAKE = (
    "no good WebSocket handshake; it takes Upgrade: websocket, Connection: Upgrade, Sec-WebSocket-Version: 13 and a "
    "Sec-WebSocket-Key of 16 bytes in base64"
)
_GRACE = 64 * 1024
_REQUEST_SECONDS = 1.0
"""How long plain requests have to end in a shutdown; by then clients have been told, and their sockets closed."""
_BODY_SECONDS = 30.0
"""How long the body of a request may take to come in."""


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

    def app(self) -> web.Application:
        """The aiohttp application."""
        app = web.Application(client_max_size=self._limits.max_message_bytes * 8, middlewares=[self._attendant()])
        for path in ("/v1/verify", "/v1/verify/{route}"):
            app.router.add_get(path, self._verify, allow_head=False, expect_handler=say_nothing_yet)
        for route in self._routes:
            app.router.add_route(route.method, route.path, self._answerer(route), expect_handler=say_nothing_yet)
        for path in dict.fromkeys(route.path for route in self._routes):
            preflight = self._preflight([each for each in self._routes if each.path == path])
            app.router.add_route("OPTIONS", path, preflight, expect_handler=say_nothing_yet)
        app.router.register_resource(Anywhere())
        app.on_shutdown.append(self._shut_down)
        return app

    async def serve(
        self,
        host: str,
        port: int,
        *,
        ready: Callable[[int], None],
        tls: Callable[[], ssl.SSLContext] | None = None,
        reload: Callable[[], None] | None = None,
    ) -> None:
        """Serve until a signal. SIGTERM lets running streams finish for a while, SIGINT ends them; a second signal
        ends the process at once. SIGHUP calls ``reload``, where one is given.

        ``ready`` is told the bound port once connections are taken. ``tls`` gives what a new connection is to use.
        """
        stop = caught_signal(reload=reload)
        async with self.listening(host, port, tls=tls) as bound:
            ready(bound)
            if await stop is signal.SIGTERM:
                await drain(self._engine, self._drain_seconds)

    @contextlib.asynccontextmanager
    async def listening(
        self, host: str, port: int, *, tls: Callable[[], ssl.SSLContext] | None = None
    ) -> AsyncIterator[int]:
        """Take connections meanwhile; yields the bound port. VerifierError where the address cannot be had."""
        runner = web.AppRunner(
            self.app(),
            access_log=None,
            logger=_fault_log(),
            handle_signals=False,
            handler_cancellation=True,  # whoever leaves stops what was being done for it
            shutdown_timeout=_REQUEST_SECONDS,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            lingering_time=0,  # which has no limit in bytes; see linger
        )
        await runner.setup()
        assert runner.server is not None
        keeper = self._doorkeeper
        entrance = Entrance(runner.server, lambda: keeper.config.limits, refused=keeper.count_refusal, tls=tls)
        try:
            yield await entrance.open(host, port)
        finally:
            await entrance.close()
            await runner.cleanup()

    # --- every request ------------------------------------------------------------------------------------------

    def _attendant(self) -> Middleware:
        """Stands around all handlers: sees to it that a request comes to an end, whatever its sender does."""

        @web.middleware
        async def attend(request: web.Request, handler: Handler) -> web.StreamResponse:
            visit = Visit.of(request.transport)
            if visit is not None:
                visit.asked()
            try:
                response = await self._attend(request, handler)
            finally:
                if visit is not None:
                    visit.answered()
            if not response.keep_alive and request.body_exists and not request.content.is_eof():
                await linger(request.content)
            return response

        return attend

    async def _attend(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:  # no such path, or no such method on it
            why = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "bad_request")
            what = f"{request.method} {request.path[:100]!r}"
            text = f"{what} is not served here ({error.reason}); check address and method"
            response = whole_response(plain_refusal(self._doorkeeper.refusal(why, error.status, text)), {})
            response.headers.update({name: error.headers[name] for name in ("Allow",) if name in error.headers})
        if not response.prepared:
            await send_whole(response, request)
        return response

    def _check_body(self, request: web.Request, *, taken: bool) -> None:
        what = f"{request.method} {request.path[:100]!r}"
        length = request.content_length if request.content_length is not None else int(request.body_exists)
        self._doorkeeper.check_body(what, length, most=request.client_max_size if taken else 0)

    @contextlib.contextmanager
    def _connected(self, request: web.Request, visitor: Visitor) -> Iterator[Guest]:
        """While it is a guest, its socket is one's as well."""
        visit = Visit.of(request.transport)
        with self._doorkeeper.connected(visitor) as guest, visit.seated() if visit else contextlib.nullcontext():
            yield guest

    # --- the WebSocket ------------------------------------------------------------------------------------------

    async def _verify(self, request: web.Request) -> web.StreamResponse:
        refusal = self._doorkeeper.refusal
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        try:
            self._check_body(request, taken=False)
            if SUBPROTOCOL not in [name.strip() for name in offered.split(",")]:
                text = f"this endpoint speaks the WebSocket subprotocol {SUBPROTOCOL}; offer it"
                raise refusal("subprotocol", 400, text)
            if self._engine.draining:
                text = "the verifier is shutting down; connect to another"
                raise refusal("shutting_down", 503, text, retry_after=1.0)
            visitor = self._admit(request, request.match_info.get("route", ""))
            with self._connected(request, visitor) as guest:
                socket = web.WebSocketResponse(
                    protocols=(SUBPROTOCOL,),
                    compress=False,
                    autoping=False,  # a peer pings, and knows when no pong can be expected
                    # A little over the limit still reaches the session, whose reply states the limit.
                    max_msg_size=self._limits.max_message_bytes + _GRACE,
                )
                socket.headers["X-Request-Id"] = visitor.request_id
                try:
                    await socket.prepare(request)
                except (ValueError, web.HTTPBadRequest) as error:  # which of the two depends on what is odd in it
                    raise refusal("bad_request", 400, _BAD_HANDSHAKE) from error
                await self._converse(socket, request.transport, visitor, guest)
                return socket
        except Refusal as refused:
            return whole_response(plain_refusal(refused), {})
        except ConnectionError:  # it left before the handshake was over
            return web.Response()

    async def _converse(
        self, socket: web.WebSocketResponse, transport: asyncio.BaseTransport | None, visitor: Visitor, guest: Guest
    ) -> None:
        peer = Peer(_Socket(socket, transport), lost=lambda: connection.closed())
        self._peers.add(peer)
        connection = Connection(
            self._engine,
            self._target.info,
            self._limits,
            visitor=visitor,
            idleness=self._doorkeeper.idleness(),
            send=peer.enqueue,
            schedule=in_thread_of(asyncio.get_running_loop()),
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
            lower_names(request.headers), remote=request.remote or "", route=route, query=request.query
        )

    def _answerer(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """What aiohttp calls for a route: a call in, a reply out."""

        async def answer(request: web.Request) -> web.StreamResponse:
            headers = self._doorkeeper.cross_origin(lower_names(request.headers))
            takes_body = route.method == "POST"
            try:
                if route.public:
                    self._check_body(request, taken=takes_body)
                    return await respond(request, Visitor(remote=request.remote or ""), headers)
                visitor = self._admit(request)
                headers["X-Request-Id"] = visitor.request_id
                self._check_body(request, taken=takes_body)
                with self._connected(request, visitor) as guest:
                    guest.when_dismissed(cancelling(asyncio.current_task()))
                    response = await respond(request, visitor, headers)
                    if not response.prepared:  # it is a guest until its answer is sent
                        await send_whole(response, request)
                    return response
            except Refusal as refusal:
                return whole_response(route.refuse(refusal), headers)

        async def respond(request: web.Request, visitor: Visitor, headers: dict[str, str]) -> web.StreamResponse:
            call = await self._call(request, visitor)
            try:
                reply = await route.handler(call)
            except Refusal:
                raise
            except Exception as error:  # aiohttp would show a caller the traceback where asyncio is being debugged
                logger.exception("%s %s failed", call.method, call.path)
                text = "the verifier failed on this call; try again"
                raise self._doorkeeper.refusal("internal", 500, text) from error
            if isinstance(reply.body, bytes):
                return whole_response(reply, headers)
            return await stream_response(request, reply, reply.body, headers)

        return answer

    async def _call(self, request: web.Request, visitor: Visitor) -> Call:
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                body = await read_body(request)
        except TimeoutError:
            text = f"the request's body did not come whole within {_BODY_SECONDS:g} s; send it again"
            raise self._doorkeeper.refusal("slow_body", 408, text) from None
        except web.HTTPRequestEntityTooLarge:
            raise self._doorkeeper.too_large(request.client_max_size) from None
        except web.RequestPayloadError:
            text = "the request's body is malformed: no such encoding; check Content-Encoding and Transfer-Encoding"
            raise self._doorkeeper.refusal("bad_request", 400, text) from None
        headers = lower_names(request.headers)
        return Call(method=request.method, path=request.path, headers=headers, body=body, visitor=visitor)

    def _preflight(self, routes: Sequence[Route]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Answers a browser that asks whether a page may call the routes of one path."""
        methods = ", ".join(route.method for route in routes)

        async def answer(request: web.Request) -> web.StreamResponse:
            try:
                self._check_body(request, taken=False)
                headers = self._doorkeeper.preflight(lower_names(request.headers), methods=methods)
                return web.Response(status=204, headers=headers)
            except Refusal as refusal:
                return whole_response(routes[0].refuse(refusal), {})

        return answer

    async def _shut_down(self, app: web.Application) -> None:
        del app
        await asyncio.get_running_loop().run_in_executor(None, self._engine.stop)
        reason = b"the verifier is shutting down"
        await asyncio.gather(*(peer.finish(WSCloseCode.GOING_AWAY, reason) for peer in list(self._peers)))


_NOT_OURS = (HttpProcessingError, web.HTTPException, web.RequestPayloadError, ConnectionError)


class _OurFaults(logging.Filter):
    """Keeps requests that are malformed or cut short out of the log: no fault of ours, and they may hold a key."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return not isinstance(error, _NOT_OURS)


def _fault_log() -> logging.Logger:
    log = logging.getLogger(f"{__name__}.http")
    if not log.filters:
        log.addFilter(_OurFaults())
    return log


async def _hear(message: WSMessage, socket: web.WebSocketResponse, connection: Connection, peer: Peer) -> bool:
    """Take what a socket says. False when it is to be closed."""
    if message.type is WSMsgType.PING:
        if not peer.pinged():
            return False
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
        self.abort = aborter(transport) if isinstance(transport, asyncio.WriteTransport) else _nothing
        limit_buffer(transport)

    async def send(self, frame: bytes) -> None:
        await self._socket.send_bytes(frame)

    async def ping(self) -> None:
        await self._socket.ping()

    async def close(self, code: int, reason: bytes) -> None:
        if not self._socket.closed:
            await self._socket.close(code=code, message=reason)


def _nothing() -> None:
    """There is no transport."""
