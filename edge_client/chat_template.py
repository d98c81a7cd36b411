"""Chat messages to prompt text and token ids, in the manner of transformers' ``apply_chat_template``.

Templates come with models and from verifiers, so they run in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from ..protocol.errors import InvalidParameterError, MissingDependencyError
from .tokenizer import Tokenizer

try:
    import jinja2
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as error:
    raise MissingDependencyError("jinja2 is not installed; install draftwire[edge]") from error

__all__ = ["ChatTemplate", "encode_messages"]


class ChatTemplate:
    """A compiled chat template.

    ``variables``, such as ``bos_token`` and ``eos_token``, are known to every rendering.
    """

    def __init__(self, source: str, **variables: object) -> None:
        """Compile ``source``.

        Raises:
            InvalidParameterError: it is no template.
        """
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidParameterError("chat_template", f"line {error.lineno}: {error.message}") from error
        except Exception as error:
            raise InvalidParameterError("chat_template", f"cannot be compiled: {_one_line(error)}") from error
        self._variables = variables
        self.source = source

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: object
    ) -> str:
        """Prompt text of ``messages``, each with at least ``role`` and ``content``.

        Args:
            messages: the conversation, oldest first.
            add_generation_prompt: end with what opens the model's answer.
            variables: further names the template knows, such as ``tools``.

        Raises:
            InvalidParameterError: a message is malformed, or the template refuses them.
        """
        names: dict[str, object] = {"tools": None, "documents": None, **self._variables, **variables}
        conversation = _check_messages(messages)
        try:
            return self._template.render(messages=conversation, add_generation_prompt=add_generation_prompt, **names)
        except Exception as error:  # a template can fail in any way Python can
            raise InvalidParameterError("messages", f"the chat template refused them: {_one_line(error)}") from error


def encode_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    template: ChatTemplate | None,
    tokenizer: Tokenizer,
    add_generation_prompt: bool = True,
    **variables: object,
) -> list[int]:
    """Token ids of a conversation. The template writes BOS where the model wants one, so none is added to it.

    Raises:
        InvalidParameterError: there is no template, or :meth:`ChatTemplate.render` refused the messages.
    """
    if template is None:
        raise InvalidParameterError("messages", "this model has no chat template; give the prompt as text or token ids")
    text = template.render(messages, add_generation_prompt=add_generation_prompt, **variables)
    return tokenizer.encode(text, add_special_tokens=False)


def _check_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidParameterError("messages", "must be a list of at least one {role, content}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidParameterError("messages", f"message {index} must be a mapping with a role")
        content = message.get("content")
        # Messages that only call tools have no content; some templates take a list of parts.
        if not isinstance(content, str | list) and not (content is None and message.get("tool_calls")):
            raise InvalidParameterError("messages", f"message {index} must have content as text")
    return [dict(message) for message in messages]


class _GenerationTag(Extension):
    """``{% generation %}`` marks the model's answers for training; for a prompt it is its body."""

    tags = {"generation"}  # noqa: RUF012 - the name and kind jinja2 asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; jinja2's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
