"""Hugging Face's own generation on a pair of target and draft: how fast are they on one machine, without a network?

    python -m draftwire.export.hf_reference TARGET --draft BUNDLE [--assistant MODEL] [--prompt TEXT] [--json]

``generate`` is the target alone; ``assisted`` is transformers' assisted generation with its default settings. Its
assistant is a torch model with the draft's weights: the model that the draft was exported from, each matrix quantized
as in the bundle and dequantized again, held in the target's dtype. So it guesses about as the draft does, and costs
what a torch model of its size costs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..protocol.errors import DraftwireError, InvalidParameterError, ModelNotFoundError, UnsupportedModelError
from ..protocol.manifest import Manifest
from .chatter import hushed
from .dependencies import require
from .prompts import PROMPTS
from .quantize import bits_of, dequantize, quantize_rows
from .source import one_line, opened_source
from .terminal import prepare_streams, tell

__all__ = ["Speed", "carry_draft_weights", "main", "measure"]

_PROGRAM = "python -m draftwire.export.hf_reference"
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Of one way to generate: tokens a second after the first step, harmonic mean over the prompts."""

    tokens_per_second: float
    ttft_ms: float
    tokens: int


class _Clock:
    """A stopping criterion that stops nothing: it notes when tokens are there, after each step of generation."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seen: list[tuple[float, int]] = []

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        self.seen.append((time.perf_counter() - self.started, int(input_ids.shape[1])))
        return input_ids.new_zeros(input_ids.shape[0]).bool()


def measure(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    assistant: Any | None = None,
) -> Speed:
    """Generate after each prompt and take the time.

    Args:
        model: a transformers model.
        prompts: token ids.
        max_tokens: of each answer, 2 at least.
        temperature: 0 is greedy.
        seed: of the sampling.
        assistant: for assisted generation.

    Raises:
        UnsupportedModelError: transformers cannot generate with these.
    """
    _generate(model, prompts[0], max_tokens=_WARM_UP_TOKENS, temperature=temperature, assistant=assistant)
    require("torch").manual_seed(seed)
    rates, first, tokens = [], [], 0
    for prompt in prompts:
        seen = _generate(model, prompt, max_tokens=max_tokens, temperature=temperature, assistant=assistant)
        (begun, length), (ended, whole) = seen[0], seen[-1]
        first.append(begun)
        tokens += whole - len(prompt)
        if whole > length:
            rates.append((whole - length) / (ended - begun))
    if not rates:
        raise UnsupportedModelError("every answer ended with its first step, so there is no speed; use other prompts")
    return Speed(
        tokens_per_second=statistics.harmonic_mean(rates), ttft_ms=1000 * statistics.median(first), tokens=tokens
    )


def _generate(
    model: Any, prompt: Sequence[int], *, max_tokens: int, temperature: float, assistant: Any | None
) -> list[tuple[float, int]]:
    """Seconds and length of the sequence after each step."""
    torch: Any = require("torch")
    transformers: Any = require("transformers")
    clock = _Clock()
    options: dict[str, Any] = {"max_new_tokens": max_tokens, "do_sample": temperature > 0}
    if temperature > 0:
        options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
    if assistant is not None:
        options["assistant_model"] = assistant
    ids = torch.tensor([list(prompt)])
    try:
        with hushed(), torch.inference_mode():
            criteria = transformers.StoppingCriteriaList([clock])
            clock.started = time.perf_counter()
            model.generate(ids, attention_mask=torch.ones_like(ids), stopping_criteria=criteria, **options)
    except Exception as error:  # whatever transformers raises
        raise UnsupportedModelError(f"transformers cannot generate with this pair: {one_line(error)}") from error
    return clock.seen


# --- the assistant ----------------------------------------------------------------------------------------------------


def carry_draft_weights(model: Any, manifest: Manifest) -> str:
    """Give an fp32 torch model the weights of the bundle that was exported from it, in place; says what was done.

    Matrices of linear layers and of the embedding are quantized as the bundle's and dequantized; where embedding and
    head are one weight they stay one.
    """
    scheme = manifest.quantization.scheme
    if scheme == "none" or manifest.quantization.block_size is None:
        return "the draft's own weights, which are not quantized"
    bits, block_size = bits_of(scheme), manifest.quantization.block_size
    torch: Any = require("torch")
    embedding = model.get_input_embeddings()
    done: set[int] = set()
    for module in model.modules():
        kind = type(module).__name__
        if not (module is embedding or isinstance(module, torch.nn.Linear) or kind == "Conv1D"):
            continue
        weight = module.weight.data
        if weight.data_ptr() in done:
            continue
        done.add(weight.data_ptr())
        rows = weight.T if kind == "Conv1D" else weight  # GPT-2 keeps its matrices the other way round
        matrix = np.ascontiguousarray(rows.numpy())
        rounded = torch.from_numpy(dequantize(quantize_rows(matrix, bits=bits, block_size=block_size)))
        rows.copy_(rounded)
    return f"the draft's weights, {scheme} in blocks of {block_size}, dequantized"


def _load(model: str, *, dtype: str) -> Any:
    torch: Any = require("torch")
    transformers: Any = require("transformers")
    with opened_source(model) as source:
        try:
            with hushed():
                loaded = transformers.AutoModelForCausalLM.from_pretrained(
                    source.folder, dtype=getattr(torch, dtype), local_files_only=True
                )
        except Exception as error:  # whatever transformers raises
            raise ModelNotFoundError(f"{model} cannot be read as a model: {one_line(error)}") from error
    return loaded.eval()


def _assistant(parsed: argparse.Namespace, manifest: Manifest) -> tuple[Any, str]:
    """The torch model with the draft's weights, in the target's dtype, and what it is in words."""
    source = parsed.assistant or _source_of(manifest, parsed.target)
    model = _load(source, dtype="float32")
    done = carry_draft_weights(model, manifest)
    torch: Any = require("torch")
    return model.to(getattr(torch, parsed.dtype)), f"torch model in {parsed.dtype} with {done}"


def _source_of(manifest: Manifest, target: str) -> str:
    """The model a draft was exported from: the target itself where that has the same name, else a hub id."""
    name = manifest.source.model
    path = Path(target).expanduser()
    if name in (target, path.name, path.resolve().name):
        return target
    return name


# --- the program ------------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    prepare_streams()
    try:
        report = _run(_parser().parse_args(arguments))
    except InvalidParameterError as error:
        tell(f"{_PROGRAM}: error: {error}")
        return 2
    except DraftwireError as error:
        tell(f"{_PROGRAM}: error: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    print(report)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("target", metavar="TARGET", help="hub id, folder or GGUF file")
    parser.add_argument("--draft", required=True, metavar="BUNDLE", help="draft bundle whose weights assist")
    parser.add_argument("--assistant", metavar="MODEL", help="model the draft was exported from (default: by its name)")
    parser.add_argument("--prompt", action="append", metavar="TEXT", help="may be repeated (default: a fixed set)")
    parser.add_argument("--token-ids", metavar="FILE", help="JSON lists of prompts' token ids instead; - is stdin")
    parser.add_argument("--max-tokens", type=int, default=100, help="of each answer (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--seed", type=int, default=7, help="of the sampling (default %(default)s)")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16", help="(default %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _run(parsed: argparse.Namespace) -> str:
    if parsed.max_tokens < 2 or parsed.threads < 1 or not 0 <= parsed.temperature < float("inf"):
        raise InvalidParameterError(
            "options", "--max-tokens must be at least 2, --threads at least 1, --temperature a number from 0"
        )
    manifest = Manifest.load(parsed.draft)
    prompts = _prompts(parsed)
    torch: Any = require("torch")
    torch.set_num_threads(parsed.threads)
    target = _load(parsed.target, dtype=parsed.dtype)
    assistant, about = _assistant(parsed, manifest)
    options = {"max_tokens": parsed.max_tokens, "temperature": parsed.temperature, "seed": parsed.seed}
    speeds = {
        "generate": measure(target, prompts, **options),
        "assisted": measure(target, prompts, assistant=assistant, **options),
    }
    report = {name: asdict(speed) for name, speed in speeds.items()} | {"assistant": about}
    if parsed.json:
        return json.dumps(report, indent=2)
    lines = [f"{name:10}{speed.tokens_per_second:8.1f} tokens/s" for name, speed in speeds.items()]
    return "\n".join([*lines, f"The assistant: {about}."])


def _prompts(parsed: argparse.Namespace) -> list[list[int]]:
    """Token ids, as given or made with the target's tokenizer and chat template."""
    if parsed.token_ids is not None:
        return _given_ids(parsed.token_ids)
    transformers: Any = require("transformers")
    with opened_source(parsed.target) as source, hushed():
        tokenizer = transformers.AutoTokenizer.from_pretrained(source.folder, local_files_only=True)
    return [_encode(tokenizer, text) for text in parsed.prompt or [prompt.text for prompt in PROMPTS]]


def _given_ids(file: str) -> list[list[int]]:
    try:
        content = json.loads(sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidParameterError("--token-ids", f"{file} cannot be read as JSON: {one_line(error)}") from error
    if not (isinstance(content, list) and content and all(map(_is_prompt, content))):
        raise InvalidParameterError("--token-ids", "must be lists of token ids, such as [[1, 2, 3], [1, 4]]")
    return content


def _is_prompt(ids: Any) -> bool:
    return isinstance(ids, list) and bool(ids) and all(type(token) is int and token >= 0 for token in ids)


def _encode(tokenizer: Any, text: str) -> list[int]:
    if tokenizer.chat_template:
        turns = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return [int(token) for token in tokenizer(text, add_special_tokens=False)["input_ids"]]
    return [int(token) for token in tokenizer(text)["input_ids"]]


if __name__ == "__main__":
    raise SystemExit(main())
