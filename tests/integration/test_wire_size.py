"""What a round costs on the wire, WebSocket headers included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import frame_bytes
from draftwire.edge_client.wan_relay import WanRelay
from draftwire.protocol.frames import encode
from draftwire.protocol.messages import Commit, Draft, Open, Opened, Policy
from draftwire.protocol.sampling import SamplingParams
from numpy.typing import NDArray

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import PatientScheduler, running_verifier
from .table_targets import endless_table

VOCABULARY = 49152
BLOCK = 4
MOST_UP, MOST_DOWN = 32, 16
PING = (2 + 4 + 4, 2 + 4)
"""Bytes of a ping of four bytes, masked, and of its pong."""


class WideTarget(TableTarget):
    """A vocabulary of the size of a real one; after token t it is as good as certain of the next but six."""

    def __init__(self) -> None:
        super().__init__(vocabulary_size=64)
        self.info = replace(self.info, vocabulary_size=VOCABULARY, logits_size=VOCABULARY, max_context=8192)

    def logits_after(self, tokens: Any) -> NDArray[np.float32]:
        """See :meth:`TableTarget.logits_after`."""
        logits = np.zeros(VOCABULARY, np.float32)
        logits[following(tokens[-1])] = 100.0
        return logits


def following(token: int) -> int:
    return (token + 7001) % VOCABULARY


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=0.7)], ids=["greedy", "coupled"])
async def test_a_round_of_four(params: SamplingParams) -> None:
    """At a position, a path id and a stream id large enough to take more than one byte each."""
    async with (
        running_verifier(WideTarget(), scheduler=PatientScheduler()) as verifier,
        WanRelay("127.0.0.1", verifier.port) as relay,
    ):
        through = replace(verifier, url=f"ws://127.0.0.1:{relay.port}")
        async with await RawClient.connect(through) as client:
            sequence = [5] * 3000
            stream = await client.open(
                sequence, params=params, max_tokens=1000, drafting=True, policy=Policy.COST, seed=2**64 - 1
            )
            assert isinstance(await client.receive(), Opened)
            first = await client.receive()  # comes with the end of the prompt
            assert isinstance(first, Commit)
            assert first.token == following(5)
            sequence.append(first.token)
            accepted = 0
            for round_ in range(60):
                right = round_ % 3 < 2
                guess = [sequence[-1]]
                for _ in range(BLOCK):
                    guess.append(following(guess[-1]) if right else 49151)
                before = relay.counters.bytes_up, relay.counters.bytes_down
                await client.send(
                    Draft(
                        stream=stream,
                        path=200 + round_,
                        start=len(sequence),
                        token_ids=tuple(guess[1:]),
                        confidences=(3,) * BLOCK,
                        sent_at=65000 + round_,
                        continues=True,
                    )
                )
                commit = await client.receive()
                assert isinstance(commit, Commit)
                assert commit.accepted == (BLOCK if right else 0)
                assert commit.token is not None
                assert commit.echo is not None
                accepted += commit.accepted
                sequence += [*guess[1 : 1 + commit.accepted], commit.token]
                assert relay.counters.bytes_up - before[0] <= MOST_UP
                assert relay.counters.bytes_down - before[1] <= MOST_DOWN
            assert accepted == 40 * BLOCK


@pytest.mark.parametrize("stream", [1, 200])
def test_the_largest_frames_of_a_round(stream: int) -> None:
    """Far into a long stream, after a step of seconds."""
    draft = Draft(
        stream=stream,
        path=5000,
        start=120_000,
        token_ids=(49151,) * BLOCK,
        confidences=(255,) * BLOCK,
        sent_at=65535,
        continues=True,
    )
    commit = Commit(stream=stream, path=5000, accepted=BLOCK, token=49151, echo=65535, queued=4000, computed=4000)
    assert frame_bytes(len(encode(draft, VOCABULARY)), masked=True) <= MOST_UP
    assert frame_bytes(len(encode(commit, VOCABULARY)), masked=False) <= MOST_DOWN


@pytest.mark.parametrize("draft", [None, "right", "wrong"])
async def test_the_stats_count_the_bytes_on_the_wire(
    draft: str | None, drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = drafts[draft] if draft else None
    async with (
        running_verifier(endless_table()) as verifier,
        WanRelay("127.0.0.1", verifier.port) as relay,
        AsyncEdgeClient(f"ws://127.0.0.1:{relay.port}", draft=folder) as client,
    ):
        opened: list[Open] = []
        admit = verifier.engine.open

        def record(owner: Any, request: Open) -> None:
            opened.append(request)
            admit(owner, request)

        monkeypatch.setattr(verifier.engine, "open", record)
        await client.wait_for_draft()
        await client.generate([1, 2], max_tokens=4)  # connected, and the tokenizer fetched
        await client.ping()
        before = relay.counters.bytes_up, relay.counters.bytes_down
        result = await wait_for(client.generate([1, 7, 3], max_tokens=60, policy="cost", temperature=0.8, seed=1))
        await client.ping()
        open_bytes = frame_bytes(len(encode(opened[-1], 24)), masked=True)
        assert relay.counters.bytes_up - before[0] == result.stats.bytes_up + open_bytes + PING[0]
        assert relay.counters.bytes_down - before[1] == result.stats.bytes_down + PING[1]
    assert (result.stats.bytes_up > 0) == (draft is not None)
