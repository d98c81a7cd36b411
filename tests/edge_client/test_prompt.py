from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tokenizers
from draftwire.edge_client.chat_template import ChatTemplate
from draftwire.edge_client.prompt import Vocabulary
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.errors import InvalidParameterError
from tokenizers import models, pre_tokenizers, processors

WORDS = ["<s>", "</s>", "<user>", "<bot>", "hello", "there", "friend"]
SIZE = len(WORDS)
TEMPLATE = "<s>{% for m in messages %} <{{ m.role }}> {{ m.content }}{% endfor %} <bot>"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """A tokenizer that puts a BOS before every text, and a template that writes its own."""
    ids = {word: index for index, word in enumerate(WORDS)}
    backend = tokenizers.Tokenizer(models.WordLevel(ids, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(WORDS[:4])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return Vocabulary(Tokenizer(backend), ChatTemplate(TEMPLATE))


def encode(vocabulary: Vocabulary, prompt: Any) -> list[int]:
    return vocabulary.encode(prompt, size=SIZE)


def test_text_gets_the_tokenizers_own_special_tokens(vocabulary: Vocabulary) -> None:
    assert encode(vocabulary, "hello there") == [0, 4, 5]


def test_messages_get_one_bos_from_the_template(vocabulary: Vocabulary) -> None:
    messages = [{"role": "user", "content": "hello friend"}]
    assert encode(vocabulary, messages) == [0, 2, 4, 6, 3]
    assert encode(vocabulary, tuple(messages)) == [0, 2, 4, 6, 3]


def test_ids_are_taken_as_they_are(vocabulary: Vocabulary) -> None:
    assert encode(vocabulary, [4, 0, 6]) == [4, 0, 6]
    assert encode(vocabulary, (4,)) == [4]
    assert encode(vocabulary, range(3)) == [0, 1, 2]


@pytest.mark.parametrize(
    "prompt",
    [
        None,
        5,
        b"hello",
        bytearray(b"\x01"),
        {"role": "user", "content": "hello"},
        {1, 2},
        [],
        (),
        [-1],
        [SIZE],
        [2**31],
        [1, 2.0],
        [True],
        ["hello"],
        [1, {"role": "user", "content": "x"}],
        [None],
        np.array([1, 2]),
    ],
)
def test_what_is_no_prompt_is_refused(vocabulary: Vocabulary, prompt: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        encode(vocabulary, prompt)
    assert caught.value.field == "prompt"


def test_an_empty_text_is_refused_where_it_gives_no_token() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    with pytest.raises(InvalidParameterError, match="empty"):
        Vocabulary(Tokenizer(backend), None).encode("", size=2)


@pytest.mark.parametrize(
    "messages", [[{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": "x"}, 5], [{}]]
)
def test_malformed_messages_are_refused(vocabulary: Vocabulary, messages: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        encode(vocabulary, messages)
    assert caught.value.field == "messages"


def test_messages_without_a_template_are_refused(vocabulary: Vocabulary) -> None:
    plain = Vocabulary(vocabulary.tokenizer, None)
    with pytest.raises(InvalidParameterError, match="no chat template"):
        plain.encode([{"role": "user", "content": "hello"}], size=SIZE)
