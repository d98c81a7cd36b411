"""Hugging Face's own generation beside the benchmark: the same pair on one machine, without a network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...protocol.errors import DraftwireError
from .processes import CoreSplit, ask_program

__all__ = ["ReferenceOptions", "run_references"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """Of the references; as in the benchmark itself."""

    target: str
    draft: str
    dtype: str
    max_tokens: int
    seed: int


def run_references(
    options: ReferenceOptions, prompt_ids: Sequence[Sequence[int]], temperatures: Sequence[float], *, cores: CoreSplit
) -> list[dict[str, Any]]:
    """What ``python -m draftwire.export.hf_reference`` reports, once for each temperature, on the target's core.

    Raises:
        DraftwireError: it failed, or reported something else.
    """
    reports: list[dict[str, Any]] = []
    for temperature in temperatures:
        arguments = [options.target, "--draft", options.draft, "--dtype", options.dtype, "--threads", "1"]
        arguments += ["--max-tokens", str(options.max_tokens), "--temperature", str(temperature)]
        arguments += ["--seed", str(options.seed), "--token-ids", "-", "--json"]
        with cores.target():
            report = ask_program("draftwire.export.hf_reference", arguments, given=json.dumps(list(prompt_ids)))
        if not isinstance(report, dict) or not {"generate", "assisted", "assistant"} <= report.keys():
            raise DraftwireError("the references' report is not what was expected; are both from one version?")
        reports.append({**report, "temperature": temperature})
    return reports
