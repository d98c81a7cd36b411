from __future__ import annotations

from collections.abc import Sequence

import pytest
import tokenizers
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol import detokenizer as module
from draftwire.protocol.detokenizer import IncrementalDetokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from ..edge_client.conftest import byte_level_tokenizer

KINDS = ("byte-level", "llama", "gemma", "metaspace", "wordpiece")
TEXTS = (
    "Hello world, how are you?",
    "  two leading spaces, and   three inside",
    "emoji 🙂🙃 👩‍👩‍👧 and flags 🇩🇪🇯🇵",
    "你好世界。日本語のテキスト",
    "mixed é ü ñ 你 🙂 x",
    "\n\nnew lines\n\tand tabs\n",
    "བོད་ཡིག་ནི་",
    "real replacement � characters ��",
    "",
    " ",
)
PIECES = ["▁", "▁▁", "▁▁▁", "H", "e", "l", "o", "w", "r", "d", "▁Hello", "▁world", "Hello", "你", "▁a", "a", ",", "�"]


def sentencepiece_like(decoder: str) -> tokenizers.Tokenizer:
    """A BPE over ``▁`` with byte tokens for what it lacks, with the decoder that Llama or Gemma files carry."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [("▁", "▁"), ("▁▁", "▁"), ("▁", "a")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if decoder == "llama":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        parts.append(decoders.Strip(" ", 1, 0))
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence(parts)
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return backend


def metaspace() -> tokenizers.Tokenizer:
    tokens = ["<unk>", "<s>", *PIECES]
    backend = tokenizers.Tokenizer(models.Unigram([(token, -float(i)) for i, token in enumerate(tokens)], 0, False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["<s>"])
    return backend


def wordpiece() -> tokenizers.Tokenizer:
    tokens = ["[UNK]", "[CLS]", "hello", "##s", "##ing", "world", ".", ",", "do", "n't", "'", "##a", "b"]
    backend = tokenizers.Tokenizer(models.WordPiece({t: i for i, t in enumerate(tokens)}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(["[CLS]"])
    return backend


MAKERS = {
    "byte-level": byte_level_tokenizer,
    "llama": lambda: sentencepiece_like("llama"),
    "gemma": lambda: sentencepiece_like("gemma"),
    "metaspace": metaspace,
    "wordpiece": wordpiece,
}
TOKENIZERS = {kind: Tokenizer.from_json(make().to_str()) for kind, make in MAKERS.items()}


def one_shot(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int], *, skip: bool = True) -> str:
    """The definition: text of all ids, less what it shares at the front with the prompt's text."""
    before = tokenizer.decode(prompt, skip_special_tokens=skip)
    whole = tokenizer.decode([*prompt, *ids], skip_special_tokens=skip)
    shared = 0
    while shared < min(len(before), len(whole)) and before[shared] == whole[shared]:
        shared += 1
    return whole[shared:]


def deltas_of(
    tokenizer: Tokenizer, prompt: Sequence[int], chunks: Sequence[Sequence[int]], *, skip: bool = True
) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, prompt, skip_special_tokens=skip)
    deltas = [detokenizer.push(chunk) for chunk in chunks]
    return [*deltas, detokenizer.finish()]


def cut(ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    chunks, start = [], 0
    for size in sizes:
        chunks.append(list(ids[start : start + size]))
        start += size
    return [*chunks, list(ids[start:])]


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("prompt", ["", "Hello", "Hello ", "🙂", "<s>"], ids=range(5))
def test_one_token_at_a_time_equals_decoding_at_once(kind: str, text: str, prompt: str) -> None:
    tokenizer = TOKENIZERS[kind]
    before, ids = tokenizer.encode(prompt), tokenizer.encode(text)
    for end in range(len(ids) + 1):  # every truncation, inside characters too
        deltas = deltas_of(tokenizer, before, [[token] for token in ids[:end]])
        assert "".join(deltas) == one_shot(tokenizer, before, ids[:end])
        if "�" not in text:
            assert "�" not in "".join(deltas[:-1])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_ids_and_any_chunking_equal_decoding_at_once(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    token = st.integers(0, tokenizer.vocabulary_size + 1)
    prompt, ids = data.draw(st.lists(token, max_size=20)), data.draw(st.lists(token, max_size=60))
    sizes, skip = data.draw(st.lists(st.integers(0, 7), max_size=30)), data.draw(st.booleans())
    joined = "".join(deltas_of(tokenizer, prompt, cut(ids, sizes), skip=skip))
    assert joined == one_shot(tokenizer, prompt, ids, skip=skip)


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_long_texts_in_any_chunking_equal_decoding_at_once(kind: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[kind]
    word = st.sampled_from(["Hello", " ", "  ", "a", "é", "你好", "🙂", "\n", "<s>", "<|im_end|>", ", ", "world"])
    text = "".join(data.draw(st.lists(word, min_size=20, max_size=80)))
    ids = tokenizer.encode(text)
    sizes = data.draw(st.lists(st.integers(1, 40), max_size=60))
    end = data.draw(st.integers(0, len(ids)))
    prompt, generated = ids[:end], ids[end:]  # the prompt may end inside a character
    assert "".join(deltas_of(tokenizer, prompt, cut(generated, sizes))) == one_shot(tokenizer, prompt, generated)


def test_the_space_between_prompt_and_answer_is_kept() -> None:
    tokenizer = TOKENIZERS["llama"]
    world = tokenizer.token_to_id("▁world")
    assert world is not None
    assert deltas_of(tokenizer, tokenizer.encode("Hello"), [[world]]) == [" world", ""]
    assert deltas_of(tokenizer, [], [[world]]) == ["world", ""]
    special = [tokenizer.token_to_id("</s>") or 0] * 30
    assert deltas_of(tokenizer, [*tokenizer.encode("Hello"), *special], [[world]]) == [" world", ""]


def test_a_character_comes_with_the_token_that_completes_it() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a🙂b")
    assert len(ids) == 6
    assert deltas_of(tokenizer, [], [[token] for token in ids]) == ["a", "", "", "", "🙂", "b", ""]


def test_text_before_an_incomplete_character_is_not_held_back() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("The quick 🙂")
    assert deltas_of(tokenizer, [], [ids[:-1], ids[-1:]]) == ["The quick ", "🙂", ""]


def test_a_character_that_the_prompt_began_is_given_whole() -> None:
    for kind in ("byte-level", "llama"):
        tokenizer = TOKENIZERS[kind]
        ids = tokenizer.encode("Hello a 🙂")
        assert deltas_of(tokenizer, ids[:-2], [[ids[-2]], [ids[-1]]])[-3:] in (["", "🙂", ""], ["", "", "🙂"])


def test_a_real_replacement_character_of_the_prompt_stays_the_prompts() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert "".join(deltas_of(tokenizer, tokenizer.encode("odd �"), [tokenizer.encode(" end")])) == " end"


def test_text_of_byte_tokens_alone_does_not_stand_still() -> None:
    tokenizer = TOKENIZERS["llama"]
    text = "བོད་ཡིག" * 40
    ids = tokenizer.encode(text, add_special_tokens=False)
    deltas = deltas_of(tokenizer, tokenizer.encode("a"), [[token] for token in ids])
    assert "".join(deltas) == one_shot(tokenizer, tokenizer.encode("a"), ids)
    given_early = len("".join(deltas[:-1]))
    assert given_early >= len(text) - module.BYTE_RUN_TOKENS
    assert "�" not in "".join(deltas)


@pytest.mark.parametrize("kind", KINDS)
def test_work_per_token_does_not_grow(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[kind]
    seen: list[int] = []
    decode = tokenizer.decode

    def counting(ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        seen.append(len(ids))
        return decode(ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    detokenizer = IncrementalDetokenizer(tokenizer, [])
    for index in range(3000):
        detokenizer.push([index % tokenizer.vocabulary_size])
    assert max(seen) <= 2 * module.WINDOW_TOKENS + module.BYTE_RUN_TOKENS
    assert sum(seen) <= 3000 * 2 * (module.WINDOW_TOKENS + module.BYTE_RUN_TOKENS)


@pytest.mark.parametrize("kind", KINDS)
def test_one_large_push_costs_as_many_small_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = [index % tokenizer.vocabulary_size for index in range(3000)]
    expected = "".join(deltas_of(tokenizer, [], [[token] for token in ids]))
    longest = 0
    decode = tokenizer.decode

    def counting(ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(tokenizer, "decode", counting)
    assert "".join(deltas_of(tokenizer, [], [ids])) == expected
    assert longest <= 2 * module.WINDOW_TOKENS + module.BYTE_RUN_TOKENS
