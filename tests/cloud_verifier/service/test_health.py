from __future__ import annotations

from dataclasses import dataclass

import pytest
from draftwire.cloud_verifier.service.health import Health
from draftwire.cloud_verifier.service.http import Call, Visitor


@dataclass
class Engine:
    running: bool = True
    draining: bool = False
    busy_since: float | None = None


async def ask(health: Health, path: str) -> tuple[int, bytes]:
    (route,) = [route for route in health.routes() if route.path == path]
    assert route.public
    reply = await route.handler(Call(method="GET", path=path, headers={}, body=b"", visitor=Visitor()))
    assert isinstance(reply.body, bytes)
    return reply.status, reply.body


@pytest.mark.parametrize(
    ("engine", "status", "text"),
    [
        (Engine(), 200, b"ready"),
        (Engine(busy_since=71.0), 200, b"ready"),
        (Engine(busy_since=69.0), 503, b"more than 30 s"),
        (Engine(draining=True), 503, b"shutting down"),
        (Engine(running=False), 503, b"not running"),
    ],
    ids=["idle", "in a step", "stalled", "draining", "dead"],
)
async def test_ready_is_who_can_take_work(engine: Engine, status: int, text: bytes) -> None:
    health = Health(engine, stall_seconds=30.0, clock=lambda: 100.0)
    found, body = await ask(health, "/readyz")
    assert found == status
    assert text in body
    assert await ask(health, "/healthz") == (200, b"ok\n")


async def test_a_stall_that_ends_is_over() -> None:
    engine = Engine(busy_since=10.0)
    health = Health(engine, stall_seconds=30.0, clock=lambda: 100.0)
    assert (await ask(health, "/readyz"))[0] == 503
    engine.busy_since = None
    assert (await ask(health, "/readyz"))[0] == 200
