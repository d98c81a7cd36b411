"""A call's own id, and the trace that it is part of, from its headers to the log and the span."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.protocol.messages import End

from ..cloud_verifier.operations.collector import collector
from ..grace import GRACE
from .door_rig import knock
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import endless_table
from .test_metrics import operations_for

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACED = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
PROMPT = [4, 2]


@pytest.fixture(autouse=True)
def received(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a collector gets that the environment names."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with collector() as (url, taken):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield taken


@asynccontextmanager
async def observed() -> AsyncIterator[RunningVerifier]:
    """A verifier that logs its streams and sends spans; all have been sent when the block has ended."""
    target = endless_table()
    operations = operations_for(target, "--otel")
    try:
        async with running_verifier(
            target, operations=operations, routes=lambda *parts: OpenAiApi(*parts).routes()
        ) as verifier:
            yield verifier
    finally:
        operations.close()


async def over_websocket(verifier: RunningVerifier, **headers: str) -> None:
    async with await RawClient.connect(verifier, headers=headers) as client:
        _, end = await client.follow(await client.open(PROMPT, max_tokens=3))
        assert isinstance(end, End)


async def over_http(verifier: RunningVerifier, **headers: str) -> None:
    """By OpenAI's client; the answer names the id as well."""
    url = f"http://127.0.0.1:{verifier.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=GRACE) as client:
        create = client.completions.with_raw_response.create
        answer = await create(
            model=verifier.target.info.name, prompt=PROMPT, max_tokens=3, temperature=0, extra_headers=headers
        )
    if headers:
        assert answer.headers["X-Request-Id"] == headers["X-Request-Id"]


WAYS = pytest.mark.parametrize("way", [over_websocket, over_http])


def logged_ids(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of each line about a stream, from its fields; its text begins with the same."""
    records = [record for record in caplog.records if record.name == "draftwire.requests"]
    ids = [str(getattr(record, "request_id", None)) for record in records]
    for record, request_id in zip(records, ids, strict=True):
        assert record.getMessage().startswith(f"{request_id} stream 1: ")
    return ids


def whole_spans(received: list[Any]) -> list[Any]:
    """The spans of streams, without those of their phases."""
    scopes = [scope for request in received for resource in request.resource_spans for scope in resource.scope_spans]
    return [span for scope in scopes for span in scope.spans if span.name.startswith("text_completion ")]


def attributes_of(span: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


@WAYS
async def test_a_callers_id_and_trace_are_in_its_log_lines_and_its_span(
    way: Any, received: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="draftwire.requests")
    async with observed() as verifier:
        await way(verifier, **{"X-Request-Id": "order-4711:a", **TRACED})
    assert logged_ids(caplog) == ["order-4711:a"] * 2  # opened, ended
    (span,) = whole_spans(received)
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, PARENT)
    assert attributes_of(span)["draftwire.request_id"] == "order-4711:a"


@WAYS
async def test_without_either_an_id_is_made_and_a_trace_begins(
    way: Any, received: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="draftwire.requests")
    async with observed() as verifier:
        for _ in range(2):
            await way(verifier)
    first, *_, last = ids = logged_ids(caplog)
    assert len(ids) == 4
    assert len(set(ids)) == 2
    assert all(first)
    spans = whole_spans(received)
    assert [attributes_of(span)["draftwire.request_id"] for span in spans] == [first, last]
    assert len({span.trace_id for span in spans}) == 2
    assert [span.parent_span_id for span in spans] == [b"", b""]


@pytest.mark.parametrize("given", ["two words", "a" * 65, "{}", '"', "é"])
async def test_what_is_no_id_is_replaced(given: str, caplog: pytest.LogCaptureFixture) -> None:
    """So that no caller writes what it likes into the log."""
    caplog.set_level(logging.INFO, logger="draftwire.requests")
    async with observed() as verifier:
        answer = await knock(verifier, headers={"X-Request-Id": given})
        assert answer.status == 101
        assert len(answer.headers["x-request-id"]) == 16
        assert (await knock(verifier, headers={"X-Request-Id": "mine"})).headers["x-request-id"] == "mine"
        await over_websocket(verifier, **{"X-Request-Id": given})
    assert given not in caplog.text
    assert len(logged_ids(caplog)[0]) == 16
