"""The key of a client is in no log of the client, however much it logs."""

from __future__ import annotations

import logging

import pytest
from draftwire.edge_client import AsyncEdgeClient

from .running_verifier import running_verifier
from .table_targets import endless_table

KEY = "dw_a-key-that-nobody-may-see"


async def test_the_key_is_in_no_log_of_the_client(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("websockets", "websockets.client", "draftwire.wire", "asyncio"):
        caplog.set_level(logging.DEBUG, logger=name)  # which is undone; every test to come would log every frame
    async with (
        running_verifier(endless_table()) as verifier,
        AsyncEdgeClient(verifier.url, api_key=KEY) as client,
    ):
        await client.generate([1, 7, 3], max_tokens=5)
    assert "Authorization" in caplog.text, "the header is logged, or this test proves nothing"
    assert KEY not in caplog.text
