from __future__ import annotations

from collections import Counter

import pytest
from draftwire.edge_client.bench.prompts import PROMPTS, TASKS, choose_prompts, lengthened
from draftwire.protocol.errors import InvalidParameterError


def test_three_prompts_of_each_task_and_no_name_twice() -> None:
    assert Counter(prompt.task for prompt in PROMPTS) == dict.fromkeys(TASKS, 3)
    assert len({prompt.name for prompt in PROMPTS}) == len({prompt.text for prompt in PROMPTS}) == len(PROMPTS)


def test_summaries_have_something_to_summarize() -> None:
    lengths = [len(prompt.text.split()) for prompt in PROMPTS if prompt.task == "summary"]
    assert all(120 <= length <= 210 for length in lengths)


def test_by_default_one_of_each_task() -> None:
    assert [prompt.task for prompt in choose_prompts()] == list(TASKS)
    assert [prompt.name for prompt in choose_prompts(tasks=["code", "list"])] == ["code-1", "list-1"]


def test_a_count_takes_the_first() -> None:
    assert [prompt.name for prompt in choose_prompts(count=2)] == ["chat-1", "code-1"]
    assert [prompt.name for prompt in choose_prompts(tasks=["code"], count=3)] == ["code-1", "code-2", "code-3"]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"tasks": ["song"]}, "--tasks"), ({"count": 0}, "--prompts"), ({"tasks": ["chat"], "count": 4}, "--prompts")],
)
def test_what_there_is_not(options: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidParameterError, match=f"{named}: "):
        choose_prompts(**options)  # type: ignore[arg-type]


def test_a_long_prompt_asks_the_same_after_much_to_read() -> None:
    long = lengthened(PROMPTS[0])
    assert (long.name, long.task) == ("long-chat-1", "chat")
    assert long.text.endswith(PROMPTS[0].text)
    assert 1000 <= len(long.text.split()) <= 1500
