"""Verifiers that are lost at a chosen moment, and what a generation that outlives them must be like."""

from __future__ import annotations

import socket
from typing import Any

from aiohttp import web
from draftwire.edge_client import AsyncStream, Degraded, Finished, Result, RoundCompleted, TextDelta
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import Commit, Error, Open, Opened
from draftwire.protocol.session import Session

from .scripted_verifier import welcome
from .table_targets import PacedTarget, endless_table, reference_tokens

__all__ = [
    "COUNT",
    "MODES",
    "PROMPT",
    "STAGES",
    "WAYS",
    "break_off",
    "expected_tokens",
    "faulty",
    "followed",
    "paced_table",
]

PROMPT = [1, 7, 3]
COUNT = 30
MODES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "seed": 11},
    "penalized": {"temperature": 0.9, "seed": 2**64 - 1, "repetition_penalty": 1.3, "presence_penalty": 0.4},
    "rejection": {"temperature": 0.8, "seed": 11, "mode": "rejection"},
}


def paced_table() -> PacedTarget:
    """Steps of 4 ms: some drafts are in time, some late, and many tokens are run ahead."""
    return PacedTarget(seconds=0.004, vocabulary_size=24, seed=5, eos_bias=-1e4)


def expected_tokens(mode: str, count: int = COUNT) -> tuple[int, ...] | None:
    """What an uncut run commits; in rejection mode that depends on what was drafted in time."""
    return None if mode == "rejection" else reference_tokens(endless_table(), PROMPT, count, **MODES[mode])


async def followed(stream: AsyncStream) -> tuple[Result, list[Any]]:
    """A stream to its end, with every event: whole, in order, nothing twice."""
    async with stream:
        events = [event async for event in stream]
        result = await stream.get_final_result()
    texts = [event for event in events if isinstance(event, TextDelta)]
    rounds = [event for event in events if isinstance(event, RoundCompleted)]
    assert "".join(event.text for event in texts) == result.text
    assert tuple(token for event in texts for token in event.token_ids) == result.token_ids
    assert tuple(token for event in rounds for token in event.token_ids) == result.token_ids
    assert result.text == "".join(chr(ord("a") + token - 1) for token in result.token_ids)
    assert all(event.verified for event in texts)
    assert not any(isinstance(event, Degraded) for event in events)
    assert [event for event in events if isinstance(event, Finished)] == events[-1:]
    stats = result.stats
    assert stats.committed == len(result.token_ids)
    assert stats.accepted == sum(stats.accepted_by_position) <= stats.drafted
    assert 0 < stats.target_passes <= stats.committed + 1
    assert stats.unverified == result.unverified_tokens == 0
    return result, events


def break_off(ws: web.WebSocketResponse) -> None:
    """End the TCP connection without a word."""
    ws.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


async def go_away(ws: web.WebSocketResponse) -> None:
    """Close as a verifier does that shuts down."""
    await ws.close(code=1001, message=b"the verifier is shutting down")


async def say_goodbye(ws: web.WebSocketResponse, session: Session) -> None:
    """Say so as well, for the connection."""
    await ws.send_bytes(session.send(Error(stream=0, code=ErrorCode.SHUTTING_DOWN, message="going; come again")))
    await ws.close(code=1001)


async def lose(ws: web.WebSocketResponse, session: Session, way: str) -> None:
    if way == "breaks":
        break_off(ws)
    elif way == "closes":
        await go_away(ws)
    else:
        await say_goodbye(ws, session)


WAYS = ("breaks", "closes", "says so")
STAGES = ("hello", "welcome", "open", "opened", "first commit", "middle", "last commit")


def faulty(stage: str, way: str, tokens: tuple[int, ...], *, met: list[Open] | None = None) -> Any:
    """A verifier that commits ``tokens`` one by one, and is lost once it has come to a stage."""
    commits = {"first commit": 1, "middle": len(tokens) // 2, "last commit": len(tokens)}.get(stage, 0)

    async def script(ws: web.WebSocketResponse, session: Session) -> None:
        session.receive(await ws.receive_bytes())
        if stage == "hello":
            return await lose(ws, session, way)
        await ws.send_bytes(session.send(welcome(endless_table())))
        if stage == "welcome":
            return await lose(ws, session, way)
        (request,) = session.receive(await ws.receive_bytes())
        assert isinstance(request, Open)
        if met is not None:
            met.append(request)
        if stage == "open":
            return await lose(ws, session, way)
        messages = [Opened(stream=1), *(Commit(stream=1, path=0, accepted=0, token=t) for t in tokens[:commits])]
        for message in messages:
            await ws.send_bytes(session.send(message))
        return await lose(ws, session, way)

    return script
