"""The two endpoints: what each reads of a request, and the form in which each answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .choice import Choice
from .fields import Fields
from .options import Options, read_max_tokens
from .prompts import read_messages, read_prompts
from .vocabulary import Vocabulary

__all__ = ["ChatCompletions", "Completions", "Endpoint", "MostTokens"]

_DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_DEFAULT_CHAT_TOKENS = 512  # as on the device
_NO_LOGPROBS = "log-probabilities are not given; leave it out"
_NO_TOOLS = "this model calls no tools; leave it out"


@dataclass(frozen=True, slots=True)
class MostTokens:
    """Most tokens of a choice: the field that says so, what was ``wanted`` in it, and at most how many otherwise."""

    field: str
    wanted: int | None
    default: int


class Endpoint(Protocol):
    """One of OpenAI's two ways to ask for text.

    Attributes:
        prompt_field: holds what is gone on from.
        id_prefix: of answers' ids.
        whole_object, chunk_object: OpenAI's names of an answer and of a piece of one.
    """

    prompt_field: str
    id_prefix: str
    whole_object: str
    chunk_object: str

    def read_prompts(self, fields: Fields, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
        """Token ids of each prompt; InvalidParameterError naming the field at fault."""
        ...

    def read_most(self, fields: Fields) -> MostTokens:
        """Most tokens of a choice."""
        ...

    def refuse_unsupported(self, fields: Fields, options: Options) -> None:
        """Refuse by name what this endpoint of OpenAI's has and this one has not."""
        ...

    def whole(self, choice: Choice, text: str) -> dict[str, object]:
        """A choice that has ended."""
        ...

    def opening(self, choice: Choice) -> dict[str, object] | None:
        """What comes before a choice's first piece; None for nothing."""
        ...

    def pieces(self, choice: Choice, text: str, ended: bool) -> Sequence[dict[str, object]]:
        """A choice's pieces for more text, and for its end."""
        ...


class Completions:
    """``/v1/completions``: text that goes on from a prompt."""

    prompt_field = "prompt"
    id_prefix = "cmpl-"
    whole_object = chunk_object = "text_completion"

    def read_prompts(self, fields: Fields, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
        """See :class:`Endpoint`."""
        return read_prompts(fields, vocabulary)

    def read_most(self, fields: Fields) -> MostTokens:
        """See :class:`Endpoint`."""
        return MostTokens("max_tokens", read_max_tokens(fields, "max_tokens"), _DEFAULT_COMPLETION_TOKENS)

    def refuse_unsupported(self, fields: Fields, options: Options) -> None:
        """See :class:`Endpoint`."""
        fields.only("echo", False, why="the prompt is not repeated; leave it out")
        fields.only("suffix", "", why="text is only added at the end; leave it out")
        fields.only("best_of", options.count, why="every choice is returned; ask for n")
        fields.only("logprobs", why=_NO_LOGPROBS)

    def whole(self, choice: Choice, text: str) -> dict[str, object]:
        """See :class:`Endpoint`."""
        return {"index": choice.index, "text": text, "logprobs": None, "finish_reason": choice.finish_reason}

    def opening(self, choice: Choice) -> dict[str, object] | None:
        """See :class:`Endpoint`."""
        del choice
        return None

    def pieces(self, choice: Choice, text: str, ended: bool) -> Sequence[dict[str, object]]:
        """See :class:`Endpoint`."""
        reason = choice.finish_reason if ended else None
        return [{"index": choice.index, "text": text, "logprobs": None, "finish_reason": reason}]


class ChatCompletions:
    """``/v1/chat/completions``: the next message of a conversation."""

    prompt_field = "messages"
    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def read_prompts(self, fields: Fields, vocabulary: Vocabulary) -> list[tuple[int, ...]]:
        """See :class:`Endpoint`."""
        return [read_messages(fields, vocabulary)]

    def read_most(self, fields: Fields) -> MostTokens:
        """See :class:`Endpoint`. OpenAI has two names for it, of which ``max_tokens`` is the older."""
        older, newer = (read_max_tokens(fields, name) for name in ("max_tokens", "max_completion_tokens"))
        if older is not None and newer is not None and older != newer:
            raise fields.wrong("max_tokens", "differs from max_completion_tokens; give one of them")
        if newer is not None:
            return MostTokens("max_completion_tokens", newer, _DEFAULT_CHAT_TOKENS)
        return MostTokens("max_tokens", older, _DEFAULT_CHAT_TOKENS)

    def refuse_unsupported(self, fields: Fields, options: Options) -> None:
        """See :class:`Endpoint`."""
        del options
        for field in ("tools", "functions"):
            fields.only(field, [], why=_NO_TOOLS)
        for field in ("tool_choice", "function_call"):
            fields.only(field, "none", "auto", why=_NO_TOOLS)
        fields.only("logprobs", False, why=_NO_LOGPROBS)
        fields.only("top_logprobs", 0, why=_NO_LOGPROBS)
        fields.only("response_format", {"type": "text"}, why="answers are plain text; leave it out")
        fields.only("modalities", ["text"], why="answers are plain text; leave it out")
        fields.only("audio", why="answers are plain text; leave it out")
        fields.only("reasoning_effort", "none", why="the model answers as it is; leave it out")
        fields.only("verbosity", "medium", why="the model answers as it is; leave it out")
        fields.only("web_search_options", why="nothing is looked up; leave it out")

    def whole(self, choice: Choice, text: str) -> dict[str, object]:
        """See :class:`Endpoint`."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": choice.index, "message": message, "logprobs": None, "finish_reason": choice.finish_reason}

    def opening(self, choice: Choice) -> dict[str, object] | None:
        """See :class:`Endpoint`."""
        return self._piece(choice, {"role": "assistant", "content": ""})

    def pieces(self, choice: Choice, text: str, ended: bool) -> Sequence[dict[str, object]]:
        """See :class:`Endpoint`."""
        pieces = [self._piece(choice, {"content": text})] if text else []
        return [*pieces, self._piece(choice, {}, ended=True)] if ended else pieces

    def _piece(self, choice: Choice, delta: dict[str, object], *, ended: bool = False) -> dict[str, object]:
        reason = choice.finish_reason if ended else None
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": reason}
