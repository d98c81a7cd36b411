from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from draftwire.cloud_verifier.targets.target import Block, OutOfKvMemoryError
from draftwire.cloud_verifier.targets.transformers_target import TransformersTarget
from draftwire.protocol.errors import BusyError, InvalidParameterError, UnsupportedModelError
from draftwire.protocol.fingerprint import vocabulary_fingerprint
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig

MakeModel = Callable[..., str]
PlainLogits = Callable[[str, Sequence[int]], Any]

TOLERANCE = 5e-5


def tokens(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 96, count).tolist()


def assert_equal(actual: Any, expected: Any) -> None:
    assert actual.dtype == np.float32
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= TOLERANCE
    assert (actual.argmax(-1) == expected.argmax(-1)).all()


class Streams:
    """Drives a target and remembers what each stream holds, so that any logits can be recomputed plainly."""

    def __init__(self, target: TransformersTarget, folder: str, plain_logits: PlainLogits) -> None:
        self.target = target
        self.held: dict[int, list[int]] = {}
        self._plain = lambda held: plain_logits(folder, held)

    def open(self, stream: int, capacity: int = 600) -> None:
        self.target.open(stream, capacity)
        self.held[stream] = []

    def step(self, blocks: dict[int, Sequence[int]]) -> None:
        """Append to streams; every row must equal plain recomputation."""
        batch = [Block(stream, len(self.held[stream]), new, rows=len(new)) for stream, new in blocks.items()]
        results = self.target.step(batch)
        for (stream, new), rows in zip(blocks.items(), results, strict=True):
            self.held[stream] += new
            assert self.target.length(stream) == len(self.held[stream])
            assert_equal(rows, self._plain(self.held[stream])[-len(new) :])

    def rollback(self, stream: int, length: int) -> None:
        self.target.rollback(stream, length)
        del self.held[stream][length:]

    def close(self, stream: int) -> None:
        self.target.close(stream)
        del self.held[stream]


@pytest.fixture
def llama(make_model: MakeModel, plain_logits: PlainLogits) -> Streams:
    folder = make_model("llama")
    return Streams(TransformersTarget.load(folder), folder, plain_logits)


def test_ragged_batches_equal_separate_plain_runs(any_model: str, plain_logits: PlainLogits) -> None:
    streams = Streams(TransformersTarget.load(any_model), any_model, plain_logits)
    for stream in (1, 2, 3, 4):
        streams.open(stream)
    streams.step({1: tokens(37, 1)})
    streams.step({2: tokens(3, 2), 1: tokens(1, 3), 3: tokens(20, 4)})
    streams.step({3: tokens(1, 5), 1: tokens(5, 6), 2: tokens(4, 7), 4: tokens(11, 8)})
    streams.step({stream: tokens(1, 10 + stream) for stream in (1, 2, 3, 4)})
    streams.step({4: tokens(17, 15), 2: tokens(16, 16)})


def test_rollback_of_none_some_and_all_then_continuing_equals_recomputation(
    any_model: str, plain_logits: PlainLogits
) -> None:
    streams = Streams(TransformersTarget.load(any_model), any_model, plain_logits)
    streams.open(1)
    streams.open(2)
    streams.step({1: tokens(24, 1), 2: tokens(9, 2)})
    for kept in (24, 21, 10, 0):
        streams.rollback(1, kept)
        streams.step({1: tokens(5, 30 + kept), 2: tokens(2, 60 + kept)})
        streams.rollback(1, kept)


def test_random_life_of_many_streams(make_model: MakeModel, plain_logits: PlainLogits) -> None:
    folder = make_model("gemma3")
    streams = Streams(TransformersTarget.load(folder), folder, plain_logits)
    random = np.random.default_rng(5)
    sizes = (1, 1, 2, 4, 7, 16, 40, 150)
    opened = 0
    for turn in range(60):
        for stream in list(streams.held):
            fate = random.random()
            if fate < 0.08 and len(streams.held) > 1:
                streams.close(stream)
            elif fate < 0.3 and streams.held[stream]:
                streams.rollback(stream, int(random.integers(0, len(streams.held[stream]) + 1)))
        while len(streams.held) < 5:
            opened += 1
            streams.open(opened)
        chosen = random.permutation(list(streams.held))[: random.integers(1, 6)].tolist()
        blocks = {stream: tokens(int(random.choice(sizes)), 1000 * turn + stream) for stream in chosen}
        fitting = {stream: new for stream, new in blocks.items() if len(streams.held[stream]) + len(new) <= 600}
        streams.step(fitting)
    for stream in list(streams.held):
        streams.close(stream)
    assert streams.target.kv_bytes == 0


def test_outgrowing_a_pool_keeps_every_stream_exact(llama: Streams) -> None:
    for stream in (1, 2, 3):
        llama.open(stream)
        llama.step({stream: tokens(250, stream)})
    llama.step({1: tokens(10, 5), 3: tokens(2, 6)})  # 1 moves out, 3 into its place
    llama.step({1: tokens(1, 7), 2: tokens(1, 8), 3: tokens(1, 9)})
    llama.step({1: tokens(260, 10), 2: tokens(30, 11)})
    llama.step({1: tokens(1, 12), 2: tokens(4, 13), 3: tokens(8, 14)})


def test_chunked_prompt_equals_one_piece(make_model: MakeModel, plain_logits: PlainLogits) -> None:
    folder = make_model("gemma3")
    target = TransformersTarget.load(folder)
    prompt = tokens(300, 1)
    target.open(1, 300)
    target.open(2, 300)
    (whole,) = target.step([Block(1, 0, prompt, rows=1)])
    for start, end in ((0, 100), (100, 101), (101, 117), (117, 290), (290, 300)):
        (rows,) = target.step([Block(2, start, prompt[start:end], rows=1)])
    assert_equal(rows, whole)
    assert_equal(rows, plain_logits(folder, prompt)[-1:])


def test_restoring_what_was_saved_equals_recomputation(llama: Streams) -> None:
    llama.open(1, 40)
    llama.open(2)
    llama.step({1: tokens(30, 1), 2: tokens(3, 2)})
    saved = [llama.target.save(1, 0, 16), llama.target.save(1, 16, 20)]
    llama.target.close(1)
    llama.target.open(3, 500)
    llama.target.restore(3, saved)
    llama.held[3] = llama.held.pop(1)[:20]
    assert llama.target.length(3) == 20
    llama.step({3: tokens(25, 3), 2: tokens(1, 4)})


def test_restoring_more_than_a_stream_may_hold_changes_nothing(llama: Streams) -> None:
    llama.open(1, 8)
    llama.step({1: tokens(5, 1)})
    saved = llama.target.save(1, 0, 5)
    with pytest.raises(InvalidParameterError):
        llama.target.restore(1, [saved])
    llama.step({1: tokens(2, 2)})


def test_a_budget_shortens_the_context_and_is_never_exceeded(make_model: MakeModel, plain_logits: PlainLogits) -> None:
    folder = make_model("llama")
    per_token = TransformersTarget.load(folder)._cache.token_bytes
    per_token += per_token // 4  # two layers' keys and values are four tensors, and one may be held twice
    target = TransformersTarget.load(folder, kv_memory=600 * per_token)
    assert target.info.max_context == 750
    streams = Streams(target, folder, plain_logits)
    streams.open(1, 200)
    streams.open(2, 200)
    streams.step({1: tokens(30, 1), 2: tokens(3, 2)})
    with pytest.raises(OutOfKvMemoryError):
        target.open(3, 200)
    assert target.kv_bytes <= 600 * per_token == target.kv_budget
    streams.step({1: tokens(2, 3), 2: tokens(2, 4)})


def test_sliding_window_far_beyond_the_window(make_model: MakeModel, plain_logits: PlainLogits) -> None:
    folder = make_model("mistral")
    streams = Streams(TransformersTarget.load(folder), folder, plain_logits)
    assert [shape.window for _, shape in streams.target._layers.values()] == [8, 8]
    streams.open(1)
    streams.open(2)
    streams.step({1: tokens(200, 1), 2: tokens(90, 2)})
    for turn in range(4):
        streams.step({1: tokens(3, 10 + turn), 2: tokens(12, 20 + turn)})
        streams.rollback(2, len(streams.held[2]) - 9)


def test_windows_are_read_from_the_masks_layer_by_layer(make_model: MakeModel) -> None:
    windows = {
        kind: [shape.window for _, shape in TransformersTarget.load(make_model(kind))._layers.values()]
        for kind in ("llama", "gemma3", "gemma2", "phi3-sliding")
    }
    assert windows == {"llama": [None, None], "gemma3": [8, None], "gemma2": [8, None], "phi3-sliding": [8, 8]}


def test_padding_ids_are_cut_off_and_refused(make_model: MakeModel, plain_logits: PlainLogits) -> None:
    folder = make_model("llama", vocab_size=128)
    target = TransformersTarget.load(folder)
    assert (target.info.vocabulary_size, target.info.logits_size) == (96, 128)
    target.open(1, 20)
    prompt = tokens(10, 1)
    (rows,) = target.step([Block(1, 0, prompt, rows=2)])
    assert_equal(rows, plain_logits(folder, prompt)[-2:, :96])
    with pytest.raises(InvalidParameterError, match=r"outside 0\.\.95"):
        target.step([Block(1, 10, [96])])


def test_every_eos_id_is_known(make_model: MakeModel) -> None:
    folder = make_model("llama", eos_token_id=[2, 7, 50_000])
    GenerationConfig(eos_token_id=[9, 2]).save_pretrained(folder)
    assert TransformersTarget.load(folder).info.eos_ids == (2, 7, 9)


def test_the_handshake_data_fits_the_tokenizer(make_model: MakeModel) -> None:
    target = TransformersTarget.load(make_model("llama"))
    parsed = Tokenizer.from_str(target.tokenizer_json)
    assert parsed.encode("w5 w6").ids == [5, 6]
    special = [token.content for token in parsed.get_added_tokens_decoder().values() if token.special]
    assert set(special) == {"<pad>", "<s>", "</s>"}
    assert target.info.fingerprint == vocabulary_fingerprint(parsed.get_vocab(with_added_tokens=True), special)
    assert (target.info.dtype, target.info.device, target.info.max_context) == ("float32", "cpu", 1024)
    assert "/" not in target.info.name


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (Block(1, 4, [5]), "start"),
        (Block(1, 6, [5]), "start"),
        (Block(1, 5, []), "rows"),
        (Block(1, 5, [5], rows=0), "rows"),
        (Block(1, 5, [5], rows=2), "rows"),
        (Block(1, 5, [5] * 6), "capacity"),
        (Block(1, 5, [-1]), "tokens"),
        (Block(1, 5, [2**31]), "tokens"),
        (Block(9, 0, [5]), "stream"),
        (Block(2, 0, [5]), "stream"),
    ],
)
def test_misuse_is_refused_before_anything_changes(llama: Streams, block: Block, field: str) -> None:
    llama.open(1, 10)
    llama.open(2)
    llama.step({1: tokens(5, 1)})
    with pytest.raises(InvalidParameterError) as caught:
        llama.target.step([Block(2, 0, [4]), block])
    assert caught.value.field == field
    assert llama.target.length(2) == 0
    llama.step({2: tokens(3, 2), 1: tokens(5, 3)})


def test_opening_twice_or_beyond_the_context_is_refused(llama: Streams) -> None:
    llama.open(1)
    for stream, capacity, field in ((1, 5, "stream"), (2, 0, "capacity"), (2, 1025, "capacity")):
        with pytest.raises(InvalidParameterError) as caught:
            llama.target.open(stream, capacity)
        assert caught.value.field == field
    for length in (-1, 1):
        with pytest.raises(InvalidParameterError, match="length"):
            llama.target.rollback(1, length)


def test_a_step_that_fails_leaves_the_streams_as_they_were(llama: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.open(1)
    llama.step({1: tokens(5, 1)})
    with monkeypatch.context() as patch:
        patch.setattr(llama.target, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("out of luck")))
        with pytest.raises(RuntimeError, match="out of luck"):
            llama.target.step([Block(1, 5, [4])])
    assert llama.target.length(1) == 5
    llama.step({1: tokens(2, 2)})


def test_without_memory_the_verifier_is_busy(llama: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.open(1)
    llama.step({1: tokens(200, 1)})

    def no_memory(*_: Any, **__: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", no_memory)
        with pytest.raises(BusyError):
            llama.target.open(2, 10)
        with pytest.raises(BusyError):
            llama.target.step([Block(1, 200, tokens(100, 2))])
    llama.step({1: tokens(100, 2)})


def test_a_poisoned_stream_does_not_reach_the_next_one_in_its_slot(llama: Streams) -> None:
    for stream in (1, 2, 3, 4):
        llama.open(stream)
    llama.step({stream: tokens(30, stream) for stream in (1, 2, 3, 4)})
    pool, slot = llama.target._cache.place(4)
    with torch.inference_mode():
        for tensor in (*pool.keys, *pool.values):
            tensor[slot, :, :30] = torch.nan
    assert np.isnan(llama.target.step([Block(4, 30, [4])])[0]).any()
    llama.close(4)
    llama.open(5)
    assert llama.target._cache.place(5) == (pool, slot)
    llama.step({5: tokens(2, 5), 1: tokens(1, 6)})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_stays_near_float32(make_model: MakeModel, plain_logits: PlainLogits, dtype: str) -> None:
    folder = make_model("llama")
    target = TransformersTarget.load(folder, dtype=dtype)
    assert target.info.dtype == dtype
    prompt = tokens(30, 1)
    target.open(1, 40)
    target.step([Block(1, 0, prompt[:20])])
    (rows,) = target.step([Block(1, 20, prompt[20:], rows=10)])
    expected = plain_logits(folder, prompt)[-10:]
    assert rows.dtype == np.float32
    assert np.sqrt(np.mean((rows - expected) ** 2)) < 0.05 * expected.std()


def test_dtype_auto_is_that_of_the_checkpoint(make_model: MakeModel, tmp_path: Any) -> None:
    source = make_model("llama")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((type(tmp_path)(source) / name).read_bytes())
    assert TransformersTarget.load(str(tmp_path)).info.dtype == "bfloat16"
    assert TransformersTarget.load(source).info.dtype == "float32"


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("mamba", {"vocab_size": 96, "hidden_size": 16, "num_hidden_layers": 2}, "recurrent|linear_attention"),
        ("bloom", {"vocab_size": 96, "hidden_size": 32, "n_layer": 2, "n_head": 4}, "."),
        (
            "gpt_oss",
            {
                "vocab_size": 96,
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "sliding_window": 8,
            },
            "sinks",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused(
    make_model: MakeModel, kind: str, changes: dict[str, Any], reason: str
) -> None:
    folder = make_model(kind, **changes)
    with pytest.raises(UnsupportedModelError, match=reason) as caught:
        TransformersTarget.load(folder)
    assert "\n" not in str(caught.value)
