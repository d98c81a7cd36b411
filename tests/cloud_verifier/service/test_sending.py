"""Sending to callers who read, and who do not."""

from __future__ import annotations

import asyncio

import pytest
from draftwire.cloud_verifier.service import sending
from draftwire.cloud_verifier.service.sending import limit_buffer, send_in_time


class FakeTransport(asyncio.WriteTransport):
    aborted = False

    def abort(self) -> None:
        self.aborted = True


async def test_whoever_reads_is_waited_for() -> None:
    transport, sent = FakeTransport(), asyncio.Event()

    async def send() -> None:
        sent.set()

    await send_in_time(send(), transport)
    assert sent.is_set()
    assert not transport.aborted


@pytest.mark.parametrize("size", [0, 1000])
async def test_whoever_does_not_is_let_go_of(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(sending, "_WRITE_BYTES", 1e6)
    transport = FakeTransport()
    with pytest.raises(ConnectionResetError, match="does not read"):
        await send_in_time(asyncio.Event().wait(), transport, size=size)  # type: ignore[arg-type]
    assert transport.aborted


def test_a_transport_without_a_socket_has_no_buffer_to_limit() -> None:
    limit_buffer(None)
    limit_buffer(FakeTransport())
