"""A client that speaks the protocol frame by frame, and can break it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from draftwire.edge_client.transport import Transport
from draftwire.protocol.codes import PROTOCOL_VERSION, Capability, Role
from draftwire.protocol.messages import Commit, End, Error, Hello, Message, Open, Welcome
from draftwire.protocol.sampling import SamplingParams
from draftwire.protocol.session import Session

from ..grace import GRACE
from .running_verifier import RunningVerifier

__all__ = ["RawClient"]


class RawClient:
    """Speaks the protocol frame by frame, and can break it. An async context manager."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.session = Session(Role.CLIENT)
        self.bytes_up: list[int] = []
        self.bytes_down: list[int] = []

    @classmethod
    async def connect(
        cls, verifier: RunningVerifier, *, fingerprint: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Self:
        """Connect and shake hands; by default with the target's own fingerprint."""
        client = cls(await Transport.connect(verifier.url, headers=headers))
        await client.send(
            Hello(
                version=PROTOCOL_VERSION,
                capabilities=Capability.SPARSE_Q | Capability.PREFIXES,
                fingerprint=fingerprint or verifier.target.info.fingerprint,
                agent="test",
            )
        )
        assert isinstance(await client.receive(), Welcome)
        return client

    async def send(self, message: Message) -> None:
        """Send a message that the session allows."""
        await self.send_raw(self.session.send(message))

    async def send_raw(self, frame: bytes | str) -> None:
        """Send whatever it is."""
        await self.transport.send(frame)  # type: ignore[arg-type]

    async def receive(self) -> Message:
        """The next message."""
        async with asyncio.timeout(GRACE):
            messages = self.session.receive(await self.transport.receive())
        (message,) = messages
        return message

    async def open(self, tokens: Sequence[int], **options: Any) -> int:
        """Open a stream; returns its id. OPENED is left to be received."""
        stream = self.session.next_stream
        fields: dict[str, Any] = {
            "prompt_length": len(tokens),
            "params": SamplingParams(),
            "max_tokens": 8,
            "seed": 0,
            **options,
        }
        await self.send(Open(stream=stream, token_ids=tuple(tokens), **fields))
        return stream

    async def follow(self, stream: int) -> tuple[list[int], End | Error]:
        """Tokens of a stream without drafts, until it is over; other streams' messages are skipped."""
        return (await self.follow_all(stream))[stream]

    async def follow_all(self, *streams: int) -> dict[int, tuple[list[int], End | Error]]:
        """The same of several at once, until all of them are over."""
        tokens: dict[int, list[int]] = {stream: [] for stream in streams}
        ended: dict[int, End | Error] = {}
        while len(ended) < len(tokens):
            match await self.receive():
                case Commit(stream=stream) as message if stream in tokens:
                    assert message.accepted == 0
                    assert message.token is not None
                    tokens[stream].append(message.token)
                case (End(stream=stream) | Error(stream=stream)) as message if stream in tokens:
                    ended[stream] = message
        return {stream: (tokens[stream], ended[stream]) for stream in streams}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.transport.close()
