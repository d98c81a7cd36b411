"""What /metrics tells is what clients got: real streams over a socket, read back as Prometheus reads it."""

from __future__ import annotations

import argparse
import asyncio
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from draftwire.cloud_verifier.operations.operations import Operations, build_operations
from draftwire.cloud_verifier.operations.options import add_log_options, add_operations_options
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.stats import Stats
from draftwire.protocol.errors import ErrorCode
from draftwire.protocol.messages import Cancel, Draft, End, EndReason, Error
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from ..grace import wait_for
from .raw_client import RawClient
from .running_verifier import RunningVerifier, running_verifier
from .scrape import Scrape, fetch
from .table_targets import HeldTarget, endless_table

PROMPT = [1, 7, 3]


def operations_for(target: Any, *arguments: str) -> Operations:
    """As the command line builds them."""
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    add_operations_options(parser)
    return build_operations(parser.parse_args(arguments), target.info)


async def scrape(verifier: RunningVerifier) -> Scrape:
    _, text = await asyncio.to_thread(fetch, f"http://127.0.0.1:{verifier.port}/metrics")
    return Scrape(text)


@pytest.fixture
async def measured() -> AsyncIterator[tuple[RunningVerifier, Operations]]:
    target = endless_table()
    operations = operations_for(target, "--metrics-by-key")
    async with running_verifier(target, operations=operations) as verifier:
        yield verifier, operations


def padded(values: list[float], length: int) -> list[float]:
    return [*values, *[0.0] * (length - len(values))]


# --- figures are the clients' own ---------------------------------------------------------------------------------


async def _answers(verifier: RunningVerifier, folder: Path | None) -> list[Stats]:
    """Some answers of one client, by every policy; several at once at last."""
    async with AsyncEdgeClient(verifier.url, draft=folder) as client:
        if folder is not None:
            await client.wait_for_draft()
        settings = [
            {"policy": policy, "controller": "fixed", "look_ahead": ahead, "temperature": heat, "seed": 3}
            for policy, ahead, heat in (("cost", 4, 0.0), ("latency", 8, 0.8), ("cost", 2, 0.8), ("latency", 64, 0.0))
        ]
        results = [await client.generate(PROMPT, max_tokens=50, **options) for options in settings]
        results += await asyncio.gather(*(client.generate([2, 5], max_tokens=30, seed=seed) for seed in range(3)))
        return [result.stats for result in results]


async def test_counters_add_up_to_what_clients_got(
    measured: tuple[RunningVerifier, Operations], drafts: dict[str, Path]
) -> None:
    verifier, _ = measured
    folders = [drafts["right"], drafts["wrong"], drafts["one-hot"], None]
    answers = [
        stats for each in await asyncio.gather(*(_answers(verifier, folder) for folder in folders)) for stats in each
    ]
    seen = await scrape(verifier)

    def delivered(field: str) -> int:
        return sum(getattr(stats, field) for stats in answers)

    assert seen.total("generation_tokens_total") == delivered("committed") == len(folders) * (4 * 50 + 3 * 30)
    assert seen.total("spec_decode_num_draft_tokens_total") == delivered("drafted") > 0
    assert seen.total("spec_decode_num_accepted_tokens_total") == delivered("accepted") > 0
    assert seen.total("run_ahead_tokens_total") == delivered("run_ahead")
    assert seen.total("prompt_tokens_total") == len(folders) * (4 * 3 + 3 * 2)
    assert seen.total("request_success_total") == seen.value("request_success_total", finished_reason="length")
    assert seen.total("request_success_total") == len(answers)

    accepted = seen.by_position("spec_decode_num_accepted_tokens_per_pos_total")
    by_position = [0.0] * max(len(stats.accepted_by_position) for stats in answers)
    for stats in answers:
        for position, count in enumerate(stats.accepted_by_position):
            by_position[position] += count
    assert accepted[: len(by_position)] == by_position
    assert sum(accepted) == delivered("accepted")
    drafted = seen.by_position("spec_decode_num_draft_tokens_per_pos_total")
    assert sum(drafted) == delivered("drafted")
    assert drafted[0] == seen.total("spec_decode_num_drafts_total")
    assert all(passed <= tried for passed, tried in zip(padded(accepted, len(drafted)), drafted, strict=True))

    passes = delivered("target_passes")
    rounds = seen.total("inter_token_latency_seconds_count") + seen.total("time_to_first_token_seconds_count")
    assert rounds == passes
    assert seen.total("time_to_first_token_seconds_count") == len(answers)
    assert seen.total("request_generation_tokens_sum") == delivered("committed")
    assert seen.total("e2e_request_latency_seconds_count") == len(answers)

    # Without a draft a stream is off; no draft was counted there.
    assert seen.value("generation_tokens_total", speculation="off") == 4 * 50 + 3 * 30
    assert seen.value("spec_decode_num_draft_tokens_total", speculation="off") == 0

    # Of what the target computed, all but prompts and drafts was one token for each pass.
    assert seen.value("target_tokens_total", kind="draft") == delivered("drafted")
    assert seen.value("target_tokens_total", kind="decode") == passes
    assert seen.value("step_tokens_sum") == seen.total("target_tokens_total")

    # Shares add up to the whole.
    assert seen.value("key_generation_tokens_total", key="anybody") == delivered("committed")
    assert seen.value("route_draft_tokens_total", route="default") == delivered("drafted")
    assert seen.value("route_requests_total", route="default", finished_reason="length") == len(answers)


async def test_totals_are_those_of_end_frames_however_streams_end(
    measured: tuple[RunningVerifier, Operations],
) -> None:
    """Drafts that are right, wrong, cut off by a stop id and by the end; one stream is cancelled, one client leaves."""
    verifier, _ = measured
    ends: list[End] = []
    async with await RawClient.connect(verifier) as client:
        text, _ = await client.follow(await client.open(PROMPT, max_tokens=30))
        for wrong_at, stop_ids in ((0, ()), (2, ()), (3, ()), (99, (text[6],)), (99, ())):
            stream = await client.open(PROMPT, max_tokens=12, drafting=True, policy=1, stop_ids=stop_ids)
            guess = [token if index != wrong_at else (token + 1) % 24 for index, token in enumerate(text[:10])]
            frame = Draft(stream=stream, path=1, start=3, token_ids=tuple(guess), confidences=(255,) * 10, sent_at=0)
            await client.send(frame)
            message = await client.receive()
            while not isinstance(message, End):
                message = await client.receive()
            ends.append(message)
        cancelled = await client.open(PROMPT, max_tokens=4000)
        await client.receive()
        await client.send(Cancel(stream=cancelled))
        _, end = await client.follow(cancelled)
        assert isinstance(end, End)
        assert end.reason is EndReason.CANCELLED
        ends.append(end)
    seen = await scrape(verifier)
    assert {end.reason for end in ends} == {EndReason.STOP, EndReason.LENGTH, EndReason.CANCELLED}
    assert seen.total("generation_tokens_total") == 30 + sum(end.committed_tokens for end in ends)
    assert seen.total("spec_decode_num_draft_tokens_total") == sum(end.drafted_tokens for end in ends)
    assert seen.total("spec_decode_num_accepted_tokens_total") == sum(end.accepted_tokens for end in ends)
    assert seen.total("run_ahead_tokens_total") == sum(end.run_ahead_tokens for end in ends)
    assert seen.value("request_success_total", finished_reason="stop") == 1
    assert seen.value("request_success_total", finished_reason="cancelled") == 1


# --- how things stand ---------------------------------------------------------------------------------------------


async def test_gauges_and_refusals_while_the_verifier_is_full() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    operations = operations_for(target)
    async with (
        running_verifier(target, max_streams=2, operations=operations) as verifier,
        await RawClient.connect(verifier) as client,
        await RawClient.connect(verifier) as other,
    ):
        idle = await scrape(verifier)
        assert (idle.value("num_requests_running"), idle.value("step_in_progress_seconds")) == (0, 0)
        assert idle.value("requests_rejected_total", reason="busy") == 0
        for _ in range(2):
            await client.open(PROMPT, max_tokens=1000)
        await target.until(lambda: target.entered == 1)
        await target.step_until(lambda: target.opened == 2 and target.steps > 0)
        await target.until(lambda: target.entered > target.steps)
        held = await scrape(verifier)
        assert (held.value("num_requests_running"), held.value("num_requests_waiting")) == (2, 0)
        assert held.value("step_in_progress_seconds") > 0
        assert held.value("kv_cache_used_bytes") > 0
        third = await other.open(PROMPT)
        answer = asyncio.create_task(other.follow(third))
        await target.step_until(answer.done)
        _, refusal = await answer
        assert isinstance(refusal, Error)
        assert refusal.code is ErrorCode.BUSY
        after = await scrape(verifier)
        assert after.value("requests_rejected_total", reason="busy") == 1


async def test_a_client_that_leaves_is_told_apart() -> None:
    target = HeldTarget(vocabulary_size=24, seed=5, eos_bias=-1e4)
    async with running_verifier(target, operations=operations_for(target)) as verifier:
        async with await RawClient.connect(verifier) as client:
            await client.open(PROMPT, max_tokens=10)
            await target.until(lambda: target.entered == 1)
        target.let_go()
        await target.until(lambda: len(target.closed) == 1)
        async with await RawClient.connect(verifier) as other:  # the engine has said so by the time it opens another
            await other.follow(await other.open(PROMPT, max_tokens=1))
        assert (await scrape(verifier)).value("request_success_total", finished_reason="left") == 1


async def test_target_failures_and_failed_streams_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    target = endless_table()
    async with running_verifier(target, operations=operations_for(target)) as verifier:

        def fail(_: Any) -> Any:
            raise RuntimeError("boom")

        monkeypatch.setattr(target, "step", fail)
        async with await RawClient.connect(verifier) as client:
            _, error = await client.follow(await client.open(PROMPT))
            assert isinstance(error, Error)
        seen = await scrape(verifier)
        assert seen.value("target_failures_total") == 1
        assert seen.value("request_failures_total", reason="internal") == 1


async def test_a_known_prefix_is_counted() -> None:
    target = endless_table()
    async with (
        running_verifier(target, operations=operations_for(target)) as verifier,
        await RawClient.connect(verifier) as client,
    ):
        prompt = [token % 24 for token in range(200)]
        for _ in range(2):
            await client.follow(await client.open(prompt, max_tokens=2))
        seen = await scrape(verifier)
        assert seen.value("prefix_cache_queries_total") == 400
        assert 100 <= seen.value("prefix_cache_hits_total") < 200
        assert seen.value("target_tokens_total", kind="prompt") == 398 - seen.value("prefix_cache_hits_total")


# --- how it is told -----------------------------------------------------------------------------------------------


async def test_both_forms_are_told_as_asked(measured: tuple[RunningVerifier, Operations]) -> None:
    verifier, _ = measured
    url = f"http://127.0.0.1:{verifier.port}/metrics"
    kind, text = await asyncio.to_thread(fetch, url)
    assert kind.startswith("text/plain; version=")
    kind, modern = await asyncio.to_thread(fetch, url, Accept="application/openmetrics-text; version=1.0.0")
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    names = {name for name, _ in Scrape(text).samples if name.startswith("draftwire_")}
    assert {
        name for name, _ in Scrape(modern, parse=parse_openmetrics).samples if name.startswith("draftwire_")
    } == names
    assert ("process_resident_memory_bytes", frozenset()) in Scrape(text).samples
    info = verifier.target.info
    about = {"version": metadata.version("draftwire"), "model": info.name, "dtype": info.dtype, "device": info.device}
    assert Scrape(text).value("build_info", **about) == 1


async def test_a_port_of_its_own_answers_while_the_event_loop_is_busy() -> None:
    target = endless_table()
    operations = operations_for(target, "--metrics-port", "0")
    try:
        async with (
            running_verifier(target, operations=operations) as verifier,
            await RawClient.connect(verifier) as client,
        ):
            await client.follow(await client.open(PROMPT, max_tokens=5))
            port = operations.metrics.port
            _, text = fetch(f"http://127.0.0.1:{port}/metrics")  # here, so that nothing else runs meanwhile
            assert Scrape(text).total("generation_tokens_total") == 5
            with pytest.raises(urllib.error.HTTPError) as refused:
                await asyncio.to_thread(fetch, f"http://127.0.0.1:{verifier.port}/metrics")
            refused.value.close()
            assert refused.value.code == 404
    finally:
        operations.close()


async def test_two_verifiers_in_one_process_count_apart() -> None:
    first, second = endless_table(), endless_table()
    async with (
        running_verifier(first, operations=operations_for(first)) as one,
        running_verifier(second, operations=operations_for(second)) as other,
        await RawClient.connect(one) as client,
    ):
        await wait_for(client.follow(await client.open(PROMPT, max_tokens=7)))
        assert (await scrape(one)).total("generation_tokens_total") == 7
        assert (await scrape(other)).total("generation_tokens_total") == 0
