from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from draftwire.edge_client.chat_template import ChatTemplate, encode_messages
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.errors import InvalidParameterError
from tokenizers import processors

from .conftest import TEMPLATE, byte_level_tokenizer

CHATML = """{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\nToday Date: " + date_string + "\n\n" + system_message }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if tools is not none %}{% for t in tools %}{{- t | tojson(indent=4) }}{% endfor %}{%- endif %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}
{{ message['content'] + eos_token}}
{% else %}
{{ raise_exception('Only user and assistant roles are supported!') }}
{% endif %}
{% endfor %}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
GEMMA = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}\
{% endif %}{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + \
'<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\n'}}{% endif %}"""
LOOPS = """{% for message in messages %}
{% if loop.index > 2 %}{% break %}{% endif %}
{% if message.role == 'system' %}{% continue %}{% endif %}
{% generation %}{{ message | tojson }}{% endgeneration %}
{% endfor %}"""

TALK = [
    {"role": "user", "content": "  Why is the sky <blue> & wide? "},
    {"role": "assistant", "content": "It's Rayleigh's \"fault\"."},
    {"role": "user", "content": "你好 🙂"},
]
SYSTEM = [{"role": "system", "content": "Be brief."}, *TALK]
TOKENS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@pytest.fixture(scope="module")
def backend() -> tokenizers.Tokenizer:
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def reference(backend: tokenizers.Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=backend, **TOKENS)


@pytest.mark.parametrize("add_generation_prompt", [True, False])
@pytest.mark.parametrize(
    ("source", "messages"),
    [
        (CHATML, SYSTEM),
        (LLAMA3, SYSTEM),
        (LLAMA3, TALK),
        (MISTRAL, TALK),
        (ZEPHYR, SYSTEM),
        (GEMMA, TALK),
        (LOOPS, SYSTEM),
        (TEMPLATE, SYSTEM),
    ],
    ids=["chatml", "llama3-system", "llama3", "mistral", "zephyr", "gemma", "loops", "tiny"],
)
def test_text_and_ids_equal_transformers(
    reference: Any, source: str, messages: list[dict[str, str]], add_generation_prompt: bool
) -> None:
    options = {"chat_template": source, "add_generation_prompt": add_generation_prompt}
    expected = reference.apply_chat_template(messages, tokenize=False, **options)
    template = ChatTemplate(source, **TOKENS)
    assert template.render(messages, add_generation_prompt=add_generation_prompt) == expected
    tokenizer = Tokenizer.from_json(reference.backend_tokenizer.to_str())
    ids = reference.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"]
    mine = encode_messages(
        messages, template=template, tokenizer=tokenizer, add_generation_prompt=add_generation_prompt
    )
    assert mine == list(ids)


def test_tools_and_json_equal_transformers(reference: Any) -> None:
    tools = [{"type": "function", "function": {"name": "größe", "description": "<a> & 'b'", "parameters": {}}}]
    expected = reference.apply_chat_template(TALK, tools=tools, tokenize=False, chat_template=LLAMA3)
    rendered = ChatTemplate(LLAMA3, **TOKENS).render(TALK, tools=tools, add_generation_prompt=False)
    assert rendered == expected
    assert json.dumps(tools[0], indent=4, ensure_ascii=False) in rendered


def test_one_bos_when_template_and_tokenizer_both_write_it(backend: tokenizers.Tokenizer) -> None:
    adding = tokenizers.Tokenizer.from_str(backend.to_str())
    adding.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", pair="<|im_start|> $A $B", special_tokens=[("<|im_start|>", 0)]
    )
    tokenizer = Tokenizer.from_json(adding.to_str())
    assert tokenizer.encode("hi")[0] == 0
    ids = encode_messages(TALK, template=ChatTemplate(GEMMA, **TOKENS), tokenizer=tokenizer)
    assert ids[0] == 0
    assert ids.count(0) == 1


def test_a_call_may_add_and_override_variables() -> None:
    template = ChatTemplate("{{ bos_token }}|{{ extra }}|{{ tools is none }}", bos_token="a", extra="b")
    assert template.render(TALK) == "a|b|True"
    assert template.render(TALK, extra="c", tools=[]) == "a|c|False"


def test_no_template(backend: tokenizers.Tokenizer) -> None:
    with pytest.raises(InvalidParameterError, match="messages: this model has no chat template; give the prompt as"):
        encode_messages(TALK, template=None, tokenizer=Tokenizer.from_json(backend.to_str()))


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "hello",
        {"role": "user", "content": "x"},
        None,
        ["hello"],
        [{"content": "x"}],
        [{"role": "user"}],
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": None}],
    ],
)
def test_malformed_messages(messages: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"^messages: .*must"):
        ChatTemplate(CHATML).render(messages)


class TestTemplatesThatFail:
    def test_what_the_template_says_is_told(self) -> None:
        with pytest.raises(InvalidParameterError, match=r"messages: the chat template refused them: .*must alternate"):
            ChatTemplate(MISTRAL, **TOKENS).render(SYSTEM)

    @pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% for x in y %}", "{% nonsense %}", "{{ 1 | nofilter }}"])
    def test_no_template(self, source: str) -> None:
        with pytest.raises(InvalidParameterError, match=r"^chat_template: line \d+"):
            ChatTemplate(source)

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'role': 'system'}) }}",
            "{{ raise_exception.__globals__.json }}",
            "{{ missing.attribute }}",
            "{{ 1 // 0 }}",
            "{{ range(10 ** 9) | list }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        ],
    )
    def test_the_sandbox_holds_and_every_failure_is_typed(self, source: str) -> None:
        with pytest.raises(InvalidParameterError, match="messages: the chat template refused them: ") as caught:
            ChatTemplate(source).render(TALK)
        assert "\n" not in str(caught.value)

    def test_the_callers_messages_are_not_changed(self) -> None:
        messages = [dict(message) for message in TALK]
        ChatTemplate(LLAMA3, **TOKENS).render(messages)
        assert messages == TALK
