"""A conversation on an event loop: lines are read, and could be typed ahead, while an answer streams.

    python examples/async_chat.py

With ``retain_context`` the verifier keeps what it has read, so that each turn sends only what is new. DRAFTWIRE_URL
is the verifier, DRAFTWIRE_DRAFT the folder of a draft bundle; without one the answers are cloud-only.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading

from draftwire.edge_client import AsyncEdgeClient, Degraded, TextDelta
from draftwire.protocol.errors import DraftwireError


async def main(url: str, draft: str | None) -> None:
    """Talk until the input ends."""
    messages: list[dict[str, str]] = []
    async with AsyncEdgeClient(url, draft=draft, retain_context=True) as client:
        welcome = await client.connect()
        print(f"Talking to {welcome.target}; the end of input leaves.", file=sys.stderr, flush=True)
        lines = read_lines()
        while (line := await lines.get()) is not None:
            turn = [*messages, {"role": "user", "content": line}]
            try:
                messages = [*turn, {"role": "assistant", "content": await answer(client, turn)}]
            except DraftwireError as error:  # such as a prompt too long; the conversation goes on without this turn
                print(f"async_chat: {error}", file=sys.stderr, flush=True)


async def answer(client: AsyncEdgeClient, messages: list[dict[str, str]]) -> str:
    """Print the answer as it grows, and return it."""
    async with client.stream(messages) as stream:
        async for event in stream:
            match event:
                case TextDelta():
                    print(event.text, end="", flush=True)
                case Degraded():
                    print(f"[cloud-only: {event.reason}]", file=sys.stderr, flush=True)
        print(flush=True)
        return (await stream.get_final_result()).text


def read_lines() -> asyncio.Queue[str | None]:
    """The lines of standard input, then None. A thread reads them, as there is no portable way to await them."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str | None] = asyncio.Queue()

    def read() -> None:
        with open(0, encoding="utf-8", errors="replace", closefd=False) as source:  # sys.stdin would block the exit
            for line in source:
                if line.strip():
                    loop.call_soon_threadsafe(lines.put_nowait, line.strip())
        loop.call_soon_threadsafe(lines.put_nowait, None)

    threading.Thread(target=read, daemon=True).start()
    return lines


if __name__ == "__main__":
    try:
        asyncio.run(
            main(os.environ.get("DRAFTWIRE_URL", "ws://127.0.0.1:8300"), os.environ.get("DRAFTWIRE_DRAFT") or None)
        )
    except DraftwireError as error:
        sys.exit(f"async_chat: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
