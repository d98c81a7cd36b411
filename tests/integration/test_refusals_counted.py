"""Whatever is refused is counted once, by its reason, in what /metrics tells."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import pytest
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.operations.families import PREFIX
from draftwire.cloud_verifier.operations.metrics import Metrics
from draftwire.cloud_verifier.operations.operations import Operations
from draftwire.cloud_verifier.operations.tally import Tally
from draftwire.cloud_verifier.service.doorkeeper import Doorkeeper
from draftwire.cloud_verifier.service.keys import new_key
from draftwire.edge_client.transport import Transport

from .door_rig import ask, bearer, door_config, knock
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import endless_table

ALICE, BOB = new_key(), new_key()
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD = b'{"prompt": [1, 2], "max_tokens": 1}'

CALLS: dict[str, tuple[dict[str, Any], int, str]] = {
    # name: the call, its status, the reason
    "a field out of range": ({"body": b'{"prompt": [1], "temperature": -1}'}, 400, "invalid_parameter"),
    "no JSON": ({"body": b"{"}, 400, "invalid_parameter"),
    "another model": ({"body": b'{"prompt": [1], "model": "other"}'}, 404, "model_not_found"),
    "another model by name": ({"path": "/v1/models/other", "method": "GET"}, 404, "model_not_found"),
    "more than the context": ({"body": b'{"prompt": [1], "max_tokens": 100000}'}, 400, "prompt_too_long"),
    "a wrong key": ({"headers": bearer("wrong"), "body": GOOD}, 401, "unauthorized"),
    "no key": ({"headers": {}, "body": GOOD}, 401, "unauthorized"),
    "a key in the URL": ({"path": f"{COMPLETIONS}?key={ALICE}", "body": GOOD}, 400, "key_in_url"),
    "a page": ({"headers": {**bearer(ALICE), "Origin": "https://evil.example"}, "body": GOOD}, 403, "origin"),
    "a large body": ({"headers": {**bearer(ALICE), "Content-Length": "100000000000"}}, 413, "body_too_large"),
    "a body where none is taken": ({"path": "/v1/models", "method": "GET", "body": b"x"}, 400, "unexpected_body"),
    "a path that is not there": ({"path": "/v1/embeddings", "body": GOOD}, 404, "not_found"),
    "a method that is not there": ({"method": "PUT", "body": GOOD}, 405, "method_not_allowed"),
    "too many tokens": ({"headers": bearer(BOB), "body": b'{"prompt": [1, 2, 3]}'}, 400, "max_prompt_tokens"),
}


def verifier_of(tally: Tally, *, limits: Mapping[str, Any] | None = None) -> Any:
    """A verifier that counts in this tally."""
    config = door_config(
        keys={"alice": [ALICE], "bob": [BOB]}, key_rules={"bob": {"max_prompt_tokens": 2}}, limits=dict(limits or {})
    )
    target = endless_table()
    operations = Operations(observer=tally, routes=[], tally=tally, metrics=Metrics(target.info, tally))
    return running_verifier(
        target,
        max_streams=1,
        operations=operations,
        doorkeeper=Doorkeeper(config, refused=tally.rejected),
        routes=lambda engine, target, limits: OpenAiApi(engine, target, limits).routes(),
    )


def rejected(tally: Tally) -> Counter[str]:
    """How many, by reason."""
    counters, _ = tally.read()
    (values,) = (values for family, values in counters if PREFIX + family.name == "draftwire_requests_rejected")
    return Counter({labels[0]: int(value) for labels, value in values.items() if value})


async def status_of(verifier: RunningVerifier, call: Mapping[str, Any]) -> int:
    """Call, by default with Alice's key."""
    options = {"path": COMPLETIONS, "method": "POST", "headers": bearer(ALICE), **call}
    return (await ask(verifier, options.pop("path"), **options)).status


@pytest.mark.parametrize("name", CALLS)
async def test_a_refused_call_is_counted_once_by_its_reason(name: str) -> None:
    call, status, reason = CALLS[name]
    tally = Tally()
    async with verifier_of(tally) as verifier:
        assert await status_of(verifier, {"body": GOOD}) == 200
        assert not rejected(tally)
        assert await status_of(verifier, call) == status
    assert rejected(tally) == {reason: 1}


async def test_what_is_full_is_counted_as_that() -> None:
    tally = Tally()
    async with verifier_of(tally, limits={"requests_per_minute": 1, "max_connections": 1}) as verifier:
        for status, reason in ((200, None), (429, "requests_per_minute")):
            assert await status_of(verifier, {"body": GOOD}) == status
            assert rejected(tally) == ({reason: 1} if reason else {})
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(await Transport.connect(verifier.url, headers=bearer(ALICE)))
            assert await status_of(verifier, {"body": GOOD}) == 503
        assert rejected(tally) == {"requests_per_minute": 1, "max_connections": 1}


async def test_a_websocket_that_is_not_made_is_counted_too() -> None:
    tally = Tally()
    async with verifier_of(tally) as verifier:
        for headers, status, reason in (
            ({"Sec-WebSocket-Protocol": "chat"}, 400, "subprotocol"),
            ({"Sec-WebSocket-Version": "12", **bearer(ALICE)}, 400, "bad_request"),
            ({}, 401, "unauthorized"),
        ):
            before = rejected(tally)
            assert (await knock(verifier, headers=headers)).status == status
            assert rejected(tally) - before == {reason: 1}
        verifier.engine.drain()
        before = rejected(tally)
        assert (await knock(verifier, headers=bearer(ALICE))).status == 503
        assert rejected(tally) - before == {"shutting_down": 1}
