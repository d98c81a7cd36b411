"""``draftwire-verifier serve`` as a process of its own, and a model small enough to serve in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def make_tiny_model(folder: Path) -> Path:
    """A random Llama of one layer whose text does not end by itself."""
    words = {"<s>": 0, "</s>": 1, **{f"w{token}": token for token in range(2, 64)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<s>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "draftwire.cloud_verifier.cli", *arguments]


@contextmanager
def serving(
    *arguments: str, general: Sequence[str] = (), quiet: bool = False
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The program, serving; yields its process and URL.

    ``general``: options that go before the command. ``quiet``: what it logs is not kept, where it may be much.
    """
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        program(*general, "serve", *arguments, "--port", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().rsplit(" ", 1)[-1].strip()
        finally:
            process.kill()


@contextmanager
def serving_table(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``serve_table.py``, serving; yields its process and URL."""
    script = Path(__file__).with_name("serve_table.py")
    with subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"ws://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])
