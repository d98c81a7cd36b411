"""A userspace TCP relay that makes loopback feel like a wide-area network: slow, narrow, uneven, and breaking.

The kernel's own emulation needs privileges and modules that laptops and CI lack; this needs neither. TCP's handshake
is not delayed, and nothing is lost: what loss does to TCP is what jitter, a stall or a cut does here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from ..protocol.errors import DraftwireError, InvalidParameterError
from .wan_conditions import Conditions, Cut, Way
from .wan_link import Counters, Link, Network, is_shortage, reason

__all__ = ["Conditions", "Counters", "Cut", "WanRelay", "Way", "is_host"]


class WanRelay:
    """Listens and forwards to ``host:port`` over an emulated network. An async context manager.

    Args:
        host: the target's host.
        port: the target's port.
        delay: seconds one way, in short for ``conditions=Conditions(delay=...)``.
        conditions: what the network is like.
        cuts: breaks to come. Each is armed on every connection and happens once, on the first that comes so far, so
            that whoever reconnects can go on.
        seed: of the jitter; runs with the same seed draw the same.
        listen_host: where to listen.
        listen_port: 0 takes a free port; :attr:`port` says which.

    Raises:
        InvalidParameterError: an argument cannot be used.
        DraftwireError: entering, when it cannot listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        delay: float | None = None,
        conditions: Conditions | None = None,
        cuts: Iterable[Cut] = (),
        seed: int = 0,
        listen_host: str = "127.0.0.1",
        listen_port: int = 0,
    ) -> None:
        if delay is not None and conditions is not None:
            raise InvalidParameterError("delay", "is one of the conditions; give either")
        if conditions is None:
            conditions = Conditions(delay=0.0 if delay is None else delay)
        for field, name in (("host", host), ("listen_host", listen_host)):
            if not is_host(name):
                raise InvalidParameterError(field, f"cannot be a host name: {name!r}")
        self._network = Network(host, port, conditions, cuts=cuts, seed=seed)
        self._listen_host = listen_host
        self._server: asyncio.Server | None = None
        self._links: dict[Link, asyncio.Task[None]] = {}
        self.port = listen_port
        """Where clients connect."""

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(self._accept, self._listen_host, self.port)
        except (OSError, OverflowError) as error:
            problem = reason(error) if isinstance(error, OSError) else "no such port"
            raise DraftwireError(
                f"cannot listen on {self._listen_host}:{self.port}: {problem}; choose another address"
            ) from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for link in list(self._links):
            link.abort()
        if self._links:
            await asyncio.wait(list(self._links.values()))
        self._network.alarm.stop()

    # --- the network ------------------------------------------------------------------------------------------------

    @property
    def conditions(self) -> Conditions:
        """What the network is like now."""
        return self._network.conditions

    def change(self, conditions: Conditions) -> None:
        """Change the network under the connections. What is under way arrives as it would have, and nothing overtakes
        it.
        """
        self._network.conditions = conditions

    def cut(self) -> None:
        """Break every connection that goes through the relay, now."""
        for link in list(self._links):
            link.cut()

    def stall(self) -> None:
        """Let no byte out at either end, nor the end of a stream, and keep the connections open: silence."""
        self._network.flowing.clear()

    def resume(self) -> None:
        """End a stall: what is due comes out."""
        self._network.flowing.set()

    @property
    def counters(self) -> Counters:
        """What has gone through so far."""
        return self._network.counters

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception handler for the loop that the relay runs in: a lack of open files is one line, not a hundred."""
        if is_shortage(context.get("exception")):
            self._network.tell_shortage()
        else:
            loop.default_exception_handler(context)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._server is None:  # it came while the relay was closing
            return writer.close()
        link = Link(self._network, reader, writer)
        self._links[link] = task
        try:
            await link.run()
        finally:
            del self._links[link]


def is_host(name: str) -> bool:
    """Whether it can be looked up at all; a name that cannot be written in DNS has no address."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True
