"""What is committed over the socket is distributed exactly as the target alone would draw it, whatever the draft."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from draftwire.cloud_verifier.engine.scheduler import Scheduler
from draftwire.edge_client import AsyncEdgeClient, Result
from draftwire.edge_client.wan_relay import Conditions, WanRelay
from draftwire.protocol import acceptance
from draftwire.protocol.acceptance import Draw, Proposal
from draftwire.protocol.sampling import probabilities, process_logits
from numpy.typing import NDArray

from .chi_squared import chi_squared_tail, fit, joint_distribution, transition_fit
from .running_verifier import PatientScheduler, running_verifier
from .table_bundle import one_hot_table, right_table, write_bundle, wrong_table
from .table_targets import PacedTarget

PROMPT = [1, 3, 2]
CLIENTS = 8  # a device drafts for one stream at a time, so several devices draft at once
RUNS = 152  # of each setting; 36 settings in all
TOKENS = 6
LEAST_LIKELY = 1e-6
"""A p-value below it fails; coupled runs are a function of their seeds, and cannot fail by chance."""

FILTERS: dict[str, dict[str, Any]] = {"none": {}, "top_k": {"top_k": 3}, "top_p": {"top_p": 0.8}}
TABLES: dict[str, Callable[[PacedTarget], NDArray[np.float32]]] = {
    "right": right_table,
    "wrong": wrong_table,
    "one-hot": one_hot_table,
}


def make_target() -> PacedTarget:
    # A step takes a little time, as a model's does, so that drafts are in time for some steps and late for others.
    return PacedTarget(seconds=0.001, vocabulary_size=5, seed=3, scale=1.0, eos_bias=-1e4)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, target = tmp_path_factory.mktemp("bundles"), make_target()
    return {name: write_bundle(folder / name, target, make(target)) for name, make in TABLES.items()}


@dataclass(frozen=True, slots=True)
class Exact:
    """The target's distribution under sampling parameters, written down apart from the code under test."""

    target: PacedTarget
    temperature: float
    top_k: int = 0
    top_p: float = 1.0

    def after(self, context: tuple[int, ...]) -> Mapping[int, float]:
        logits = np.asarray(self.target.logits_after(list(context)[-2:]), np.float64) / self.temperature
        p = np.exp(logits - logits.max())
        order = np.argsort(-p, kind="stable")
        keep = order[: self.top_k] if self.top_k else order
        share = np.cumsum(p[keep]) / p[keep].sum()
        keep = keep[: int(np.searchsorted(share, self.top_p)) + 1] if self.top_p < 1 else keep
        kept = {int(token): float(p[token] / p[keep].sum()) for token in keep}
        return {token: mass for token, mass in kept.items() if mass > 1e-300}


async def sample(
    bundle: Path, runs: int, *, first_seed: int, waiting: int = 2, jitter: float = 0.0, **options: Any
) -> list[Result]:
    """Results of ``runs`` seeded streams; the verifier runs ahead, but waits for drafts in every ``waiting``-th.

    ``jitter``: most seconds that the network takes, drawn for each piece of data. With it the verifier waits no longer
    than it would in use, as the controller may well decide not to draft.
    """
    async with (
        running_verifier(make_target(), scheduler=Scheduler() if jitter else PatientScheduler()) as verifier,
        WanRelay("127.0.0.1", verifier.port, conditions=Conditions(jitter=jitter), seed=first_seed) as relay,
    ):
        url = f"ws://127.0.0.1:{relay.port}" if jitter else verifier.url
        clients = [AsyncEdgeClient(url, draft=bundle, threads=1) for _ in range(CLIENTS)]
        try:
            await asyncio.gather(*(client.wait_for_draft() for client in clients))
            seeds = iter(range(first_seed, first_seed + runs))

            async def work(client: AsyncEdgeClient) -> list[Result]:
                return [
                    await client.generate(
                        PROMPT,
                        seed=seed,
                        max_tokens=TOKENS,
                        policy="latency" if seed % waiting else "cost",
                        **{"look_ahead": 3, "controller": "fixed", **options},
                    )
                    for seed in seeds
                ]

            return [result for share in await asyncio.gather(*map(work, clients)) for result in share]
        finally:
            await asyncio.gather(*(client.close() for client in clients))


def p_values(results: list[Result], exact: Exact) -> dict[str, float]:
    """The fit of the first three tokens together, and of each token given the two before it."""
    after = cache(exact.after)
    answers = [result.token_ids for result in results]
    joint = joint_distribution(PROMPT, 3, lambda context: after(context[-2:]))
    return {
        "first three": fit(Counter(answer[:3] for answer in answers), joint),
        "given two": transition_fit(answers, prompt=PROMPT, order=2, distribution=after),
    }


@pytest.mark.parametrize("draft", TABLES)
@pytest.mark.parametrize("mode", ["coupled", "rejection"])
async def test_the_targets_own_distribution(mode: str, draft: str, bundles: dict[str, Path]) -> None:
    drafted = run_ahead = 0
    everything = []
    for number, (temperature, name) in enumerate((t, name) for t in (0.7, 1.3) for name in FILTERS):
        options = {"temperature": temperature, **FILTERS[name]}
        results = await sample(bundles[draft], RUNS, first_seed=10_000 * number, mode=mode, **options)
        assert [len(result.token_ids) for result in results] == [TOKENS] * RUNS
        found = p_values(results, Exact(make_target(), **options))
        assert min(found.values()) > LEAST_LIKELY, (temperature, name, found)
        everything += found.values()
        drafted += sum(result.stats.drafted for result in results)
        run_ahead += sum(result.stats.run_ahead for result in results)
    # Both kinds of step took part, or nothing has been shown.
    assert drafted > RUNS
    assert run_ahead > RUNS


@pytest.mark.parametrize("draft", TABLES)
@pytest.mark.parametrize("mode", ["coupled", "rejection"])
@pytest.mark.parametrize("controller", ["adaptive", "aimd"])
async def test_and_through_a_network_with_random_delays(
    mode: str, draft: str, controller: str, bundles: dict[str, Path]
) -> None:
    options = {"temperature": 1.0, "top_p": 0.95}
    results = await sample(
        bundles[draft], 2 * RUNS, first_seed=500_000, jitter=0.004, mode=mode, controller=controller, **options
    )
    found = p_values(results, Exact(make_target(), **options))
    assert min(found.values()) > LEAST_LIKELY, found
    assert sum(result.stats.drafted for result in results) > RUNS / 2
    assert sum(result.stats.run_ahead for result in results) > RUNS / 2


def broken_rejection(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
    """A rule with a classic fault: after a rejection it draws from p itself, not from the residual."""
    no_residual = Draw(params=draw.params, history=draw.history, seed=draw.seed, position=draw.position)
    token = honest_rejection(logits, proposal, draw)
    if proposal is None or token == proposal.token:
        return token
    return honest_rejection(logits, None, no_residual)


def broken_coupling(logits: NDArray[np.floating], proposal: Proposal | None, draw: Draw) -> int:
    """A rule that is lenient: it takes the draft's token wherever the target finds it likely enough."""
    p = probabilities(process_logits(logits, draw.params, draw.history))
    if proposal is not None and p[proposal.token] > 0.1:
        return proposal.token
    return honest_coupling(logits, proposal, draw)


honest_rejection, honest_coupling = acceptance.commit_rejection, acceptance.commit_coupled


@pytest.mark.parametrize(
    ("mode", "rule", "broken"),
    [("rejection", "commit_rejection", broken_rejection), ("coupled", "commit_coupled", broken_coupling)],
)
async def test_a_broken_rule_is_noticed(
    mode: str, rule: str, broken: Any, bundles: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptance, rule, broken)
    results = await sample(bundles["one-hot"], 3 * RUNS, first_seed=0, waiting=1, mode=mode, temperature=1.3)
    assert min(p_values(results, Exact(make_target(), 1.3)).values()) < LEAST_LIKELY


def test_the_tail_of_chi_squared() -> None:
    for statistic, freedom, tail in ((3.841459, 1, 0.05), (18.307038, 10, 0.05), (149.449253, 100, 0.001)):
        assert chi_squared_tail(statistic, freedom) == pytest.approx(tail, rel=1e-5)
    assert chi_squared_tail(5.0, 100) == pytest.approx(1.0)
