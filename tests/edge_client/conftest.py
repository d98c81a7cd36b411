"""Small real draft bundles, made once a session from a random Llama: fused graph and concatenated graph."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.manifest import (
    BundleFile,
    GraphSpec,
    KVSpec,
    Manifest,
    QuantizationSpec,
    SourceSpec,
    VocabularySpec,
    file_sha256,
)
from numpy.typing import NDArray
from tokenizers import decoders, models, pre_tokenizers, trainers

LOGITS_SIZE = 384  # wider than the vocabulary, as padded models are
CONTEXT_LENGTH = 2304
LAYOUTS = ("shared_buffer", "concatenated")
CORPUS = (
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Drafts are hints; the target never waits. Größe, naïve, déjà vu.",
    "def main():\n    return [x ** 2 for x in range(10)]\n",
    "你好世界。こんにちは世界。",
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

EXPORT_CONCATENATED = """
import sys
from optimum.exporters.onnx import main_export
options = {"task": "text-generation-with-past", "do_validation": False, "no_post_process": True}
main_export(sys.argv[1], output=sys.argv[2], **options)
"""


def run_python(*arguments: str) -> None:
    """Run a script in this environment's Python; its output shows only if it fails."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.fail(f"{arguments[0]} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def byte_level_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer, as Llama 3, Qwen and SmolLM have, with two special tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers, with its tokenizer."""
    import torch  # seconds, which tests that need no model are spared
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("model")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=LOGITS_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_tokenizer(), bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.save_pretrained(folder)
    return folder


def write_manifest(folder: Path, *, layout: str, inputs: list[str], **changes: Any) -> Manifest:
    """Describe the bundle in ``folder``; hashes cover every file there."""
    tokenizer = Tokenizer.from_file(folder)
    manifest = Manifest(
        name="tiny",
        architecture="LlamaForCausalLM",
        builder="fused" if layout == "shared_buffer" else "optimum",
        context_length=CONTEXT_LENGTH,
        source=SourceSpec(model="tiny"),
        vocabulary=VocabularySpec(
            fingerprint=tokenizer.fingerprint.hex(),
            size=tokenizer.vocabulary_size,
            logits_size=LOGITS_SIZE,
            eos_ids=[1],
            bos_id=0,
            special_tokens={"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"},
        ),
        kv=KVSpec(layout=layout, layers=2, heads=2, head_size=32),  # type: ignore[arg-type]
        graph=GraphSpec(inputs=inputs),
        quantization=QuantizationSpec(scheme="none"),
    )
    manifest = replace(manifest, **changes)
    names = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    files = {name: BundleFile(size=(folder / name).stat().st_size, sha256=file_sha256(folder / name)) for name in names}
    manifest = replace(manifest, files=files)
    manifest.save(folder)
    return manifest


def finish_bundle(model_folder: Path, folder: Path, *, layout: str, inputs: list[str]) -> Path:
    """Leave in ``folder`` what belongs to a bundle, and write its manifest."""
    for path in folder.iterdir():
        if not path.name.startswith("model.onnx"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copy(model_folder / "tokenizer.json", folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    write_manifest(folder, layout=layout, inputs=inputs)
    return folder


@pytest.fixture(scope="session")
def fused_bundle(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fused graph: KV in a shared buffer, positions from the mask."""
    folder = tmp_path_factory.mktemp("fused")
    cache = tmp_path_factory.mktemp("cache")
    builder = ["-m", "onnxruntime_genai.models.builder", "-i", str(model_folder), "-o", str(folder)]
    run_python(*builder, "-p", "fp32", "-e", "cpu", "-c", str(cache))
    return finish_bundle(model_folder, folder, layout="shared_buffer", inputs=["input_ids", "attention_mask"])


@pytest.fixture(scope="session")
def concatenated_bundle(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Optimum's graph: KV returned by each run, explicit positions."""
    if importlib.util.find_spec("optimum") is None:
        pytest.skip("optimum-onnx is not installed: it needs transformers 4.57")
    folder = tmp_path_factory.mktemp("concatenated")
    run_python("-c", EXPORT_CONCATENATED, str(model_folder), str(folder))
    inputs = ["input_ids", "attention_mask", "position_ids"]
    return finish_bundle(model_folder, folder, layout="concatenated", inputs=inputs)


@pytest.fixture(params=LAYOUTS)
def bundle_folder(request: pytest.FixtureRequest) -> Path:
    """The bundle of each KV layout in turn."""
    name = "fused_bundle" if request.param == "shared_buffer" else "concatenated_bundle"
    folder: Path = request.getfixturevalue(name)
    return folder


@pytest.fixture
def bundle_copy(fused_bundle: Path, tmp_path: Path) -> Path:
    """A bundle to damage."""
    return Path(shutil.copytree(fused_bundle, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def torch_logits(model_folder: Path) -> Callable[[Sequence[int]], NDArray[np.float32]]:
    """The reference: logits of the torch model after each of the tokens, [tokens, LOGITS_SIZE], without a cache."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)

    def logits(tokens: Sequence[int]) -> NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(model(torch.tensor([list(tokens)]), use_cache=False).logits[0])

    return logits


@pytest.fixture(scope="session")
def sample_tokens() -> list[int]:
    """Random token ids, more than any test needs of them."""
    return [int(token) for token in np.random.default_rng(3).integers(2, 340, CONTEXT_LENGTH)]
