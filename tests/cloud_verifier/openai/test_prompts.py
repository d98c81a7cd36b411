"""Prompts and messages, in all the forms that OpenAI has for them."""

from __future__ import annotations

from typing import Any

import pytest
from draftwire.cloud_verifier.openai.fields import Fields
from draftwire.cloud_verifier.openai.prompts import read_messages, read_prompts
from draftwire.cloud_verifier.openai.vocabulary import Vocabulary
from draftwire.protocol.errors import InvalidParameterError

from .openai_rig import endless

VOCABULARY = Vocabulary(endless())
AB, CD = (1, 2), (3, 4)


def prompts(value: Any) -> list[tuple[int, ...]]:
    return read_prompts(Fields({"prompt": value}), VOCABULARY)


def messages(value: Any) -> str:
    return VOCABULARY.decode(read_messages(Fields({"messages": value}), VOCABULARY))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ab", [AB]),
        (["ab"], [AB]),
        (["ab", "cd"], [AB, CD]),
        ([1, 2], [AB]),
        ([1.0, 2], [AB]),
        ([[1, 2]], [AB]),
        ([[1, 2], [3, 4]], [AB, CD]),
        (["ab", [3, 4]], [AB, CD]),
    ],
)
def test_a_prompt_is_text_or_ids_or_a_list_of_these(value: Any, expected: list[tuple[int, ...]]) -> None:
    assert prompts(value) == expected


@pytest.mark.parametrize(
    "value", [None, "", [], [""], [[]], 5, True, {}, [True], [1, "a"], ["a", 1], [1.5], [[1, [2]]], [None], [40], [-1]]
)
def test_any_other_prompt_is_refused(value: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        prompts(value)
    assert caught.value.field == "prompt"


def test_messages_are_rendered_up_to_the_answer() -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    assert messages(chat) == "u hi a yes a "


def test_text_parts_become_one_text() -> None:
    vocabulary = Vocabulary(endless(template="{{ messages[0].content | replace('\n', ' B ') }}"))
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    ids = read_messages(Fields({"messages": [{"role": "user", "content": parts}]}), vocabulary)
    assert vocabulary.decode(ids) == "one B two"


def test_a_name_reaches_the_template() -> None:
    vocabulary = Vocabulary(endless(template="{{ messages[0].name }}"))
    ids = read_messages(Fields({"messages": [{"role": "user", "content": "x", "name": "me"}]}), vocabulary)
    assert vocabulary.decode(ids) == "me"


def test_an_answer_of_the_client_library_can_be_sent_back() -> None:
    """It dumps the fields that are null as well."""
    empty = dict.fromkeys(("refusal", "audio", "function_call", "tool_calls"), None)
    assert messages([{"role": "assistant", "content": "yes", "annotations": [], **empty}]) == "a yes a "


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ([5], "messages[0]"),
        ([{"role": "user", "content": "a"}, {"content": "b"}], "messages[1].role"),
        ([{"role": 5, "content": "b"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}], "messages[0].content[0].x"),
        ([{"role": "user", "content": "a", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": "a", "other": 5}], "messages[0].other"),
        ([{"role": "assistant", "content": "a", "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "tool", "content": "a", "tool_call_id": "x"}], "messages[0].tool_call_id"),
        ([{"role": "wizard", "content": "a"}], "messages"),
    ],
)
def test_other_messages_are_refused_by_the_field_at_fault(value: Any, field: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        messages(value)
    assert caught.value.field == field
