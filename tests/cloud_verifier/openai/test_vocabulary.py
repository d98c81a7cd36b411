"""Text to ids and back: the same ids as on the device, and one BOS."""

from __future__ import annotations

from dataclasses import replace

import pytest
from draftwire.cloud_verifier.openai.vocabulary import Vocabulary
from draftwire.cloud_verifier.targets.table_target import TableTarget
from draftwire.edge_client.chat_template import ChatTemplate, encode_messages
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.errors import InvalidParameterError
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from .openai_rig import TEMPLATE, endless

MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "why is it so"}]
BOS_TEMPLATE = "{{ bos_token }} {% for message in messages %}{{ message['content'] }} {% endfor %}"


def target_with_bos(*, template: str | None) -> TableTarget:
    """A target whose tokenizer puts ``<s>`` before every text."""
    words = {text: token for token, text in enumerate(["<s>", "</s>", "be", "brief", "why", "is", "it", "so"])}
    backend = Backend(models.WordLevel(words, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.enable_truncation(3)
    backend.enable_padding(length=12)
    target = TableTarget(vocabulary_size=8)
    target.tokenizer_json = backend.to_str()
    target.chat_template = template
    target.special_tokens = {"bos_token": "<s>"}
    return target


def test_a_text_has_one_bos() -> None:
    vocabulary = Vocabulary(target_with_bos(template=BOS_TEMPLATE))
    assert vocabulary.encode("why is it so", field="prompt") == (0, 4, 5, 6, 7)
    assert vocabulary.encode_messages(MESSAGES, field="messages") == (0, 2, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("target", [target_with_bos(template=BOS_TEMPLATE), endless()], ids=["bos", "letters"])
def test_ids_are_those_of_the_device(target: TableTarget) -> None:
    vocabulary, tokenizer = Vocabulary(target), Tokenizer.from_json(target.tokenizer_json)
    assert vocabulary.encode("why is it so", field="x") == tuple(tokenizer.encode("why is it so"))
    template = ChatTemplate(target.chat_template or "", **target.special_tokens)
    ids = encode_messages(MESSAGES, template=template, tokenizer=tokenizer)
    assert vocabulary.encode_messages(MESSAGES, field="x") == tuple(ids)
    assert vocabulary.special_ids == tokenizer.special_ids
    for token in range(target.info.vocabulary_size):
        assert vocabulary.id_to_token(token) == tokenizer.id_to_token(token)
        assert vocabulary.decode([token]) == tokenizer.decode([token])
    assert vocabulary.token_to_id("so") == tokenizer.token_to_id("so")


def test_what_has_no_tokens_is_refused() -> None:
    vocabulary = Vocabulary(endless())
    for text in ("", "\ud800"):
        with pytest.raises(InvalidParameterError) as caught:
            vocabulary.encode(text, field="prompt")
        assert caught.value.field == "prompt"
    with pytest.raises(InvalidParameterError) as caught:
        vocabulary.encode("ab\ud800", field="prompt")
    assert str(caught.value) == (
        "prompt: has half a character (\\ud800, a lone surrogate) at position 2; send whole characters"
    )
    with pytest.raises(InvalidParameterError, match=r"^messages: has half a character"):
        vocabulary.encode_messages([{"role": "user", "content": "a\udc00"}], field="messages")
    with pytest.raises(InvalidParameterError, match=r"^prompt: is empty"):
        vocabulary.check([], field="prompt")


@pytest.mark.parametrize("ids", [[40], [-1], [3, 2**70]])
def test_ids_that_are_none_of_the_targets_are_refused(ids: list[int]) -> None:
    vocabulary = Vocabulary(endless())
    assert vocabulary.check([0, 39], field="prompt") == (0, 39)
    with pytest.raises(InvalidParameterError, match=r"^prompt: has a token id out of range 0 to 39"):
        vocabulary.check(ids, field="prompt")


def test_padding_ids_are_none_of_the_targets() -> None:
    target = endless(padding=8)
    target.info = replace(target.info, vocabulary_size=38)
    with pytest.raises(InvalidParameterError):
        Vocabulary(target).check([39], field="prompt")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (None, "no chat template; use /v1/completions"),
        (TEMPLATE, "refused them: no role tool"),
        ("{{ messages[9].content.x.y }}", "refused them: "),
        ("{% for %}", "refused them: "),
        ("", "is empty"),
    ],
)
def test_a_template_that_refuses_says_why(template: str | None, problem: str) -> None:
    vocabulary = Vocabulary(endless(template=template))
    with pytest.raises(InvalidParameterError, match=problem) as caught:
        vocabulary.encode_messages([{"role": "tool", "content": "x"}], field="messages")
    assert caught.value.field == "messages"
    assert "\n" not in str(caught.value)


def test_a_template_reaches_nothing_beyond_the_messages() -> None:
    vocabulary = Vocabulary(endless(template="{{ messages.append(1) }}{{ ''.__class__.__mro__ }}"))
    with pytest.raises(InvalidParameterError, match="refused them"):
        vocabulary.encode_messages(MESSAGES, field="messages")
