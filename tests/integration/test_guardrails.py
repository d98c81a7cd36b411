"""Guardrails as clients notice them: never in the text, only in what becomes of their drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from draftwire.cloud_verifier.guardrails.guardrails import Guardrails
from draftwire.cloud_verifier.guardrails.rule import OFF, ON, SHADOW
from draftwire.cloud_verifier.guardrails.thresholds import Thresholds
from draftwire.cloud_verifier.service.config import Config, RouteRules
from draftwire.edge_client import AsyncEdgeClient

from ..grace import wait_for
from .door_rig import GuardedVerifier, guarded_verifier
from .table_targets import PacedTarget, reference_tokens

ROUTES = Config(routes={name: RouteRules() for name in ("on", "off", "shadow")})
COUNT = 40
COUPLED: dict[str, Any] = {"temperature": 0.9, "seed": 5}


def paced() -> PacedTarget:
    """A target slow enough for drafts to be in time."""
    return PacedTarget(seconds=0.01, vocabulary_size=24, seed=5, eos_bias=-1e4)


async def stats_of(verifier: GuardedVerifier, route: str, draft: Path) -> Any:
    """What a drafting client's stream came to; its text must be the target's."""
    async with AsyncEdgeClient(f"{verifier.url}/v1/verify/{route}", draft=draft) as client:
        result = await wait_for(client.generate([4, 2], max_tokens=COUNT, **COUPLED))
    assert result.token_ids == reference_tokens(verifier.target, [4, 2], COUNT, **COUPLED)
    return result.stats


async def test_a_routes_rule_decides_about_drafts_and_not_about_text(right_draft: Path) -> None:
    guardrails = Guardrails(routes={"on": ON, "off": OFF, "shadow": SHADOW})
    async with guarded_verifier(ROUTES, target=paced(), guardrails=guardrails) as verifier:
        on, off, shadow = [await stats_of(verifier, route, right_draft) for route in ("on", "off", "shadow")]
    assert on.target_passes < COUNT
    assert off.target_passes == shadow.target_passes == COUNT
    assert off.drafted == 0
    assert shadow.accepted > 0


async def test_a_bad_draft_is_found_out_and_a_good_one_brings_speculation_back(
    right_draft: Path, drafts: dict[str, Path]
) -> None:
    now = [0.0]
    switches: list[tuple[str, str, str]] = []
    guardrails = Guardrails(
        routes={"on": ON},
        thresholds=Thresholds(
            min_acceptance=0.3, min_samples=2, cooldown_seconds=60.0, good_windows=1, probe_share=1.0
        ),
        switched=lambda *told: switches.append(told),
        clock=lambda: now[0],
    )
    async with guarded_verifier(ROUTES, target=paced(), guardrails=guardrails) as verifier:
        for _ in range(2):
            await stats_of(verifier, "on", drafts["wrong"])
        assert switches == [("on", "tripped", "acceptance")]
        assert (await stats_of(verifier, "on", right_draft)).target_passes == COUNT
        now[0] = 60.0
        for _ in range(2):
            assert (await stats_of(verifier, "on", right_draft)).target_passes < COUNT
    assert switches[1:] == [("on", "probing", "cooldown"), ("on", "healthy", "recovered")]
