"""OpenAI's penalties through OpenAI's own client: they arrive as given, and do to the answer what OpenAI says."""

from __future__ import annotations

from collections import Counter
from typing import Any

import openai
import pytest
from draftwire.cloud_verifier.openai.api import OpenAiApi
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.protocol.messages import Open
from draftwire.protocol.sampling import SamplingParams

from ..grace import GRACE
from .running_verifier import RunningVerifier, running_verifier
from .table_targets import endless_table, reference_tokens

PROMPT = [4, 2]
COUNT = 80


def penalized_by_hand(target: TableTarget, presence: float, frequency: float) -> tuple[int, ...]:
    """Greedy decoding with the penalties as OpenAI defines them: of what is in the answer, and not in the prompt."""
    tokens, used = list(PROMPT), Counter[int]()
    for _ in range(COUNT):
        logits = target.logits_after(tokens[-2:]).astype(float)
        for token, times in used.items():
            logits[token] -= presence + frequency * times
        tokens.append(int(logits.argmax()))
        used[tokens[-1]] += 1
    return tuple(tokens[len(PROMPT) :])


async def answered(verifier: RunningVerifier, **options: Any) -> tuple[int, ...]:
    """The ids of an answer, which are letters here."""
    url = f"http://127.0.0.1:{verifier.port}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=GRACE) as client:
        name = verifier.target.info.name
        answer = await client.completions.create(model=name, prompt=PROMPT, max_tokens=COUNT, **options)
    return tuple(ord(letter) - ord("a") + 1 for letter in answer.choices[0].text)


@pytest.mark.parametrize(
    ("presence", "frequency"), [(0.7, 0.0), (-1.3, 0.0), (0.0, 0.11), (0.0, -0.3), (0.4, 0.25), (2.0, -2.0)]
)
async def test_penalties_change_the_answer_as_they_should(
    presence: float, frequency: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"presence_penalty": presence, "frequency_penalty": frequency}
    target, arrived = endless_table(), list[SamplingParams]()
    async with running_verifier(target, routes=lambda *parts: OpenAiApi(*parts).routes()) as verifier:
        opened = verifier.engine.open

        def watch(owner: Any, request: Open) -> None:
            arrived.append(request.params)
            opened(owner, request)

        monkeypatch.setattr(verifier.engine, "open", watch)
        greedy = await answered(verifier, temperature=0, **given)
        drawn = await answered(verifier, temperature=0.8, seed=11, **given)
        plain = await answered(verifier, temperature=0)
    assert greedy == penalized_by_hand(target, presence, frequency)
    assert drawn == reference_tokens(target, PROMPT, COUNT, seed=11, temperature=0.8, **given)
    assert plain == reference_tokens(target, PROMPT, COUNT)
    assert greedy != plain
    assert arrived == [SamplingParams(temperature=heat, **more) for heat, more in ((0, given), (0.8, given), (0, {}))]
