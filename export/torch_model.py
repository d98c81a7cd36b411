"""The torch model an export is made from: loading it, and recording what it says."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.errors import ModelNotFoundError, NonFiniteLogitsError, UnsupportedModelError
from .chatter import hushed
from .dependencies import describe_versions, require
from .prompts import PROMPTS, Prompt
from .reference import Continuation, Reference
from .source import SourceModel, one_line
from .vocabulary import vocabulary_spec

__all__ = ["CONTINUATION_TOKENS", "TorchModel"]

CONTINUATION_TOKENS = 24
_LONGEST_TRIED_WINDOW = 1024
_PAST_WINDOW = 48  # tokens beyond the window in the text that tries it
_DEFAULT_CONTEXT = 2048


class TorchModel:
    """A causal language model in fp32 on the CPU, with its tokenizer.

    Raises:
        ModelNotFoundError: the folder's files cannot be read, or weights are missing from them.
        UnsupportedModelError: transformers does not know the architecture, or it is no text model.
    """

    def __init__(self, source: SourceModel, *, trust_remote_code: bool = False, verbose: bool = False) -> None:
        self._torch: Any = require("torch")
        transformers: Any = require("transformers")
        options = {"trust_remote_code": trust_remote_code, "local_files_only": True}
        with hushed(verbose=verbose):
            self.config = _load(source, transformers.AutoConfig, **options)
            self.tokenizer = _load(source, transformers.AutoTokenizer, **options)
            self._model, missing = _load_weights(
                source, transformers.AutoModelForCausalLM, dtype=self._torch.float32, **options
            )
        if missing:
            raise ModelNotFoundError(f"{source.name} lacks weights ({', '.join(sorted(missing)[:3])}); fetch it again")
        self._model.eval()
        # transformers 5.24 renamed the argument, and the output with it.
        names = inspect.signature(type(self._model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self.vocabulary = vocabulary_spec(self.tokenizer, logits_size=self.size, eos_ids=()).size

    @property
    def size(self) -> int:
        """Token ids that have logits."""
        return int(self.config.get_text_config().vocab_size)

    def record(self, *, tokens: int = CONTINUATION_TOKENS, prompts: Sequence[Prompt] = PROMPTS) -> Reference:
        """Run the fixed prompts and keep what the export's checks need.

        Raises:
            NonFiniteLogitsError: the model says NaN.
        """
        text = self.config.get_text_config()
        context, notes = _context_length(text)
        window = _window(text)
        room = min(context, window or context)  # inside the window every builder must agree
        continuations = [self._continue(prompt, tokens=tokens, room=room) for prompt in prompts]
        long_ids: tuple[int, ...] = ()
        long_logits = None
        if window is not None and window < context and window <= _LONGEST_TRIED_WINDOW:
            long_ids = self._long_text(continuations, min(context, window + _PAST_WINDOW))
            long_logits = self._logits(long_ids)[-_PAST_WINDOW:]
        parameters = {parameter.data_ptr(): parameter for parameter in self._model.parameters()}.values()
        return Reference(
            architecture=(self.config.architectures or [type(self._model).__name__])[0],
            context_length=context,
            notes=notes,
            tied=self._tied(),
            weight_bytes=4 * sum(parameter.numel() for parameter in parameters),
            eos_ids=tuple(sorted(self._eos_ids() | _as_set(self.tokenizer.eos_token_id))),
            continuations=tuple(continuations),
            window=window,
            long_ids=long_ids,
            long_logits=long_logits,
        )

    def _continue(self, prompt: Prompt, *, tokens: int, room: int) -> Continuation:
        """Greedy text after ``prompt``, up to an EOS id or the end of ``room`` tokens."""
        ids = self._encode(prompt.text)
        ids = ids[: max(1, min(len(ids), room - tokens - 1))]
        tokens = min(tokens, room - len(ids))
        cache: Any = None
        chosen: list[int] = []
        rows: list[NDArray[np.float32]] = []
        fed = ids
        with self._torch.inference_mode():
            for _ in range(tokens):
                past = {self._cache_name: cache}
                out = self._model(input_ids=self._torch.tensor([fed]), use_cache=True, **past)
                cache = out[self._cache_name]
                rows.append(_finite(out.logits[0, -1].float().numpy()))
                chosen.append(int(rows[-1][: self.vocabulary].argmax()))  # padding ids are never drawn
                fed = chosen[-1:]
                if chosen[-1] in self._eos_ids():  # what follows an end is no text
                    break
        return Continuation(prompt.kind, (*ids, *chosen), len(ids), np.stack(rows))

    def _eos_ids(self) -> set[int]:
        """EOS ids that the configurations name; the tokenizer may name another one."""
        generation = getattr(self._model, "generation_config", None)
        configured = (self.config, self.config.get_text_config(), generation)
        return set().union(*(_as_set(getattr(item, "eos_token_id", None)) for item in configured))

    def _encode(self, text: str) -> list[int]:
        """Token ids of one user turn, through the chat template where there is one that takes it."""
        if self.tokenizer.chat_template:
            try:
                turns = [{"role": "user", "content": text}]
                rendered = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
                return [int(token) for token in self.tokenizer(rendered, add_special_tokens=False)["input_ids"]]
            except Exception:  # a template may refuse such turns; the plain text serves the comparison as well
                pass
        return [int(token) for token in self.tokenizer(text)["input_ids"]]

    def _long_text(self, continuations: Sequence[Continuation], length: int) -> tuple[int, ...]:
        ids = [token for item in continuations for token in item.token_ids]
        return tuple((ids * (1 + length // len(ids)))[:length])

    def _logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [len(ids), vocabulary] of one text in one pass."""
        with self._torch.inference_mode():
            out = self._model(input_ids=self._torch.tensor([list(ids)]), use_cache=False)
        return _finite(out.logits[0].float().numpy())

    def _tied(self) -> bool:
        head = self._model.get_output_embeddings()
        return head is not None and head.weight.data_ptr() == self._model.get_input_embeddings().weight.data_ptr()


def _load(source: SourceModel, kind: Any, **options: Any) -> Any:
    try:
        return kind.from_pretrained(source.folder, **options)
    except Exception as error:
        raise _not_loadable(source, error) from error


def _load_weights(source: SourceModel, kind: Any, **options: Any) -> tuple[Any, list[str]]:
    try:
        model, info = kind.from_pretrained(source.folder, output_loading_info=True, **options)
    except Exception as error:
        raise _not_loadable(source, error) from error
    return model, list(info["missing_keys"])


def _not_loadable(source: SourceModel, error: Exception) -> UnsupportedModelError | ModelNotFoundError:
    versions = describe_versions("transformers")
    said = one_line(error)
    if "trust_remote_code" in str(error):
        return UnsupportedModelError(
            f"{source.name} brings its own code, which is not run unless you trust it: add --trust-remote-code"
        )
    if isinstance(error, ValueError | KeyError) or "architecture" in said:
        return UnsupportedModelError(
            f"{source.name} cannot be loaded as a causal language model with {versions}: {said}; "
            "use a text model that this transformers release knows, or another release"
        )
    return ModelNotFoundError(f"{source.name} cannot be read with {versions}: {said}; its files may be damaged")


def _as_set(ids: int | list[int] | None) -> set[int]:
    if ids is None:
        return set()
    return {ids} if isinstance(ids, int) else set(ids)


def _finite(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    if not np.isfinite(logits).all():
        raise NonFiniteLogitsError(
            "the torch model's own logits are NaN or infinite; its weights are damaged, so no draft can be made of it"
        )
    return logits


def _context_length(text: Any) -> tuple[int, tuple[str, ...]]:
    """The context a draft may use, and notes on why it is shorter than the model's, if it is."""
    context = int(getattr(text, "max_position_embeddings", None) or _DEFAULT_CONTEXT)
    scaling = getattr(text, "rope_scaling", None) or getattr(text, "rope_parameters", None) or {}
    original = getattr(text, "original_max_position_embeddings", None)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "")
    if kind == "longrope" and isinstance(original, int) and original < context:
        return original, (
            f"context cut from {context} to {original}: beyond it this model rescales positions already cached",
        )
    return context, ()


def _window(text: Any) -> int | None:
    """The sliding window, or None where no layer has one."""
    window = getattr(text, "sliding_window", None)
    kinds = getattr(text, "layer_types", None)
    if not isinstance(window, int) or window <= 0 or getattr(text, "use_sliding_window", True) is False:
        return None
    if kinds is not None and not any("sliding" in str(kind) for kind in kinds):
        return None
    return window
