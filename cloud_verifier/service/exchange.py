"""A plain HTTP exchange in aiohttp's terms: the body of a request in, a reply out, whole or in pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import NoReturn

from aiohttp import HttpVersion11, StreamReader, web

from .http import Reply
from .sending import limit_buffer, send_in_time

__all__ = ["Anywhere", "linger", "read_body", "say_nothing_yet", "send_whole", "stream_response", "whole_response"]

_LINGER_SECONDS = 1.0
_LINGER_BYTES = 256 * 1024
"""What is still read of a body that nobody wants, so that the answer reaches whoever is sending it."""


class Anywhere(web.PlainResource):
    """What no other resource of an application has; to be registered last. Answers with HTTPNotFound or
    HTTPMethodNotAllowed, as aiohttp would, which however looks at ``Expect`` first and cannot read every such header.
    """

    def __init__(self) -> None:
        super().__init__("/")
        self.add_route("*", _nowhere, expect_handler=say_nothing_yet)

    def _match(self, path: str) -> dict[str, str]:
        del path
        return {}


async def _nowhere(request: web.Request) -> NoReturn:
    methods: set[str] = set()
    for resource in request.app.router.resources():
        if not isinstance(resource, Anywhere):
            methods |= (await resource.resolve(request))[1]
    if methods:
        raise web.HTTPMethodNotAllowed(request.method, methods)
    raise web.HTTPNotFound


async def say_nothing_yet(request: web.Request) -> None:
    """Whoever asks first whether to send a body hears so when it is wanted, and not before it is admitted."""
    del request


async def read_body(request: web.Request) -> bytes:
    """The whole body, which whoever asked first is told to send.

    Raises:
        HTTPRequestEntityTooLarge, RequestPayloadError: aiohttp's, for a body that is too large or malformed.
    """
    if request.headers.get("Expect", "").lower() == "100-continue" and request.body_exists:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    return await request.read()


async def linger(body: StreamReader) -> None:
    """Read a little of what nobody wants. Closing over unread bytes would take the answer away from their sender."""
    left = _LINGER_BYTES
    with contextlib.suppress(TimeoutError, web.RequestPayloadError, ConnectionError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while left > 0 and not body.is_eof():
                left -= len(await body.readany())
            if not body.is_eof():
                await asyncio.sleep(_LINGER_SECONDS)  # the sender has time to read the answer


def whole_response(reply: Reply, headers: Mapping[str, str]) -> web.Response:
    """A reply whose body is bytes, with ``headers`` beside its own."""
    assert isinstance(reply.body, bytes)
    fields = {**headers, **reply.headers, "Content-Type": reply.content_type}
    return web.Response(body=reply.body, status=reply.status, headers=fields)


async def stream_response(
    request: web.Request, reply: Reply, pieces: AsyncIterator[bytes], headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send ``pieces`` as they come, to whoever reads them in time; they are closed whatever happens."""
    fields = {**headers, **reply.headers, "Content-Type": reply.content_type}
    response = web.StreamResponse(status=reply.status, headers=fields)
    if request.version < HttpVersion11:  # which knows no chunks: the end of the answer is that of the connection
        response.force_close()
    try:
        await response.prepare(request)
        limit_buffer(request.transport)
        async for piece in pieces:
            await send_in_time(response.write(piece), request.transport)
        await send_in_time(response.write_eof(), request.transport)
    except ConnectionError:  # it left; closing the pieces stops what made them
        pass
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
    return response


async def send_whole(response: web.StreamResponse, request: web.Request) -> None:
    """Send a reply to whoever reads it in time; a connection with a body half read ends with it."""
    if request.body_exists and not request.content.is_eof():
        response.force_close()

    async def send() -> None:
        await response.prepare(request)
        await response.write_eof()

    await send_in_time(send(), request.transport, size=response.content_length or 0)
