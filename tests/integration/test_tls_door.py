"""The door in TLS: handshakes that do not end, what an idle socket costs, and clients that do not let go."""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import gc
import re
import select
import socket
import ssl
from pathlib import Path

import pytest
from draftwire.cloud_verifier.service import entrance, peer
from draftwire.cloud_verifier.service.config import TlsFiles
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.cloud_verifier.service.tls import Certificate

from ..cloud_verifier.service.certificates import Authority
from ..grace import GRACE, wait_for
from .door_rig import door_config, guarded_verifier, upgrade_head
from .idlers import crowd, few_places, generates, still_open

__all__ = ["few_places"]


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Certificate:
    """For localhost, of an authority that clients of this test believe."""
    authority = Authority(tmp_path)
    files = authority.issue("site")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    return Certificate(TlsFiles(certificate=files.certificate, key=files.key))


@pytest.mark.usefixtures("few_places")
@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02", b"GET /healthz HTTP/1.1\r\n\r\n"], ids=repr)
async def test_a_handshake_that_does_not_end_is_counted_and_ended(sent: bytes, certificate: Certificate) -> None:
    config = door_config(limits={"max_connections": 4, "hello_seconds": 2.0})
    async with guarded_verifier(config, tls=lambda: certificate.context) as verifier:
        async with crowd(verifier, 30, sent) as idlers:
            assert await generates(verifier)
            await still_open(idlers, 8)
            await still_open(idlers, 0)
        assert await generates(verifier)


async def test_a_socket_that_does_not_speak_tls_costs_little(certificate: Certificate) -> None:
    """asyncio sets a quarter of a megabyte aside for each, where nobody says otherwise."""
    async with guarded_verifier(tls=lambda: certificate.context) as verifier:
        earlier = handshakes()
        async with crowd(verifier, 5):
            async with asyncio.timeout(GRACE):
                while len(waiting := [each for each in handshakes() if each not in earlier]) < 5:
                    await asyncio.sleep(0.01)
            assert all(len(each._ssl_buffer) <= 16 * 1024 for each in waiting)  # type: ignore[attr-defined]
        assert await generates(verifier)


def handshakes() -> list[asyncio.sslproto.SSLProtocol]:
    return [each for each in gc.get_objects() if type(each) is asyncio.sslproto.SSLProtocol]


async def test_a_dismissed_client_that_does_not_close_is_let_go_of(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(entrance, "_GOODBYE_SECONDS", 10 * GRACE)
    key = new_key()
    stays = {"bob": [new_key()]}
    async with guarded_verifier(
        door_config(keys={"alice": [key], **stays}), tls=lambda: certificate.context
    ) as verifier:
        with await asyncio.to_thread(upgraded, verifier.port, key) as client:
            verifier.doorkeeper.replace(door_config(keys=stays))
            ended = select.poll()
            ended.register(client, select.POLLRDHUP)
            assert await asyncio.to_thread(ended.poll, 1000 * GRACE)


def upgraded(port: int, key: str) -> ssl.SSLSocket:
    """A WebSocket on which nobody reads."""
    plain = socket.create_connection(("127.0.0.1", port))
    client = ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")
    client.sendall(upgrade_head(f"Authorization: Bearer {key}"))
    assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
    return client


async def test_what_comes_in_many_small_pieces_is_whole(certificate: Certificate) -> None:
    """Several TLS records that are there at once are read into one buffer, one behind the other."""
    async with guarded_verifier(tls=lambda: certificate.context) as verifier:
        reader, writer = await asyncio.open_connection("127.0.0.1", verifier.port, ssl=ssl.create_default_context())
        for piece in re.findall(
            rb"(?s).{1,7}", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ):
            writer.write(piece)
        answer = await wait_for(reader.read())
        assert answer.startswith(b"HTTP/1.1 200 ")
        writer.close()
