"""What is to be gone on from: a completion's prompts or a chat's messages, turned into token ids."""

from __future__ import annotations

from ...protocol.errors import InvalidParameterError
from .fields import Fields, shown, whole_number
from .vocabulary import Vocabulary

__all__ = ["read_messages", "read_prompts"]

_MESSAGE_EXTRAS = ("annotations", "audio", "function_call", "reasoning", "refusal", "tool_call_id", "tool_calls")


def read_prompts(fields: Fields, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
    """Token ids of each prompt: a string, token ids, or a list of either.

    Raises:
        InvalidParameterError: it is none of these, or empty, or names tokens that there are not.
    """
    value = fields.take("prompt")
    if value is None:
        raise fields.wrong("prompt", "is missing; give text or token ids")
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        return [_prompt(each, vocabulary) for each in value]
    return [_prompt(value, vocabulary)]


def _prompt(value: object, vocabulary: Vocabulary) -> tuple[int, ...]:
    if isinstance(value, str):
        return vocabulary.encode(value, field="prompt")
    if not isinstance(value, list):
        raise InvalidParameterError("prompt", f"must be text or token ids, or a list of these, not {shown(value)}")
    ids = [whole_number(token) for token in value]
    if None in ids:
        wrong = value[ids.index(None)]
        raise InvalidParameterError(
            "prompt", f"must be text or token ids, or a list of these; {shown(wrong)} is neither"
        )
    return vocabulary.check([token for token in ids if token is not None], field="prompt")


def read_messages(fields: Fields, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Token ids of a conversation, by the target's chat template.

    Raises:
        InvalidParameterError: it is malformed, or the template refuses it, or there is none.
    """
    value = fields.take("messages")
    if not isinstance(value, list) or not value:
        raise fields.wrong("messages", "must be a list of at least one message with role and content")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(value)]
    return vocabulary.encode_messages(messages, field="messages")


def _message(value: object, path: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidParameterError(path, f"must be an object with role and content, not {shown(value)}")
    fields = Fields(value, path=f"{path}.")
    role = fields.text("role")
    if not role:
        raise fields.wrong("role", "is missing; give system, user or assistant")
    message = {"role": role, "content": _content(fields)}
    name = fields.text("name")
    if name is not None:
        message["name"] = name
    for extra in _MESSAGE_EXTRAS:
        fields.only(extra, [], "", why="messages hold text alone")
    fields.finish()
    return message


def _content(fields: Fields) -> str:
    """A message's text; several parts become paragraphs of one text."""
    value = fields.take("content")
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise fields.wrong("content", "must be text, or a list of text parts")
    return "\n".join(_part(part, fields.name(f"content[{index}]")) for index, part in enumerate(value))


def _part(value: object, path: str) -> str:
    if not isinstance(value, dict):
        raise InvalidParameterError(path, f"must be an object with type and text, not {shown(value)}")
    fields = Fields(value, path=f"{path}.")
    kind = fields.text("type")
    if kind != "text":
        raise fields.wrong("type", f"must be text, not {shown(kind)}; this model reads nothing else")
    text = fields.text("text")
    if text is None:
        raise fields.wrong("text", "is missing")
    fields.finish()
    return text
