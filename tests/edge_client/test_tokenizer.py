from __future__ import annotations

import json
from pathlib import Path

import pytest
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.errors import BundleCorruptError, BundleNotFoundError, InvalidParameterError
from draftwire.protocol.fingerprint import vocabulary_fingerprint

from .conftest import byte_level_tokenizer


@pytest.fixture(scope="module")
def source() -> str:
    return byte_level_tokenizer().to_str()


@pytest.fixture
def tokenizer(source: str) -> Tokenizer:
    return Tokenizer.from_json(source)


@pytest.mark.parametrize("text", ["", " leading", "Größe, naïve", "你好 🙂", "a\n\n\tb  c", "x" * 500])
def test_text_survives(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_read_and_skipped(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("<|im_start|>user<|im_end|>")
    assert ids[0] == tokenizer.token_to_id("<|im_start|>") == 0
    assert tokenizer.decode(ids) == "user"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user<|im_end|>"
    assert tokenizer.special_ids == {0, 1}


def test_truncation_and_padding_of_the_file_are_off(source: str) -> None:
    raw = json.loads(source)
    raw["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    raw["padding"] = {
        "strategy": {"Fixed": 50},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 1,
        "pad_type_id": 0,
        "pad_token": "<|im_end|>",
    }
    text = "The quick brown fox"
    assert Tokenizer.from_json(json.dumps(raw)).encode(text) == Tokenizer.from_json(source).encode(text)


def test_fingerprint_tells_vocabularies_apart(source: str, tokenizer: Tokenizer) -> None:
    backend = byte_level_tokenizer()
    assert tokenizer.fingerprint == vocabulary_fingerprint(backend.get_vocab(), ["<|im_start|>", "<|im_end|>"])
    assert Tokenizer.from_json(source).fingerprint == tokenizer.fingerprint
    backend.add_tokens(["<extra>"])
    more = Tokenizer.from_json(backend.to_str())
    assert more.fingerprint != tokenizer.fingerprint
    assert more.vocabulary_size == tokenizer.vocabulary_size + 1
    assert more.token_to_id("<extra>") == tokenizer.vocabulary_size
    special = byte_level_tokenizer()
    special.add_special_tokens(["<extra>"])
    assert Tokenizer.from_json(special.to_str()).fingerprint != more.fingerprint


def test_ids_without_a_token(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocabulary_size
    assert tokenizer.id_to_token(size) is None
    assert tokenizer.id_to_token(-1) is None
    assert tokenizer.id_to_token(2**40) is None
    assert tokenizer.token_to_id("no such token") is None
    assert tokenizer.decode([size, *tokenizer.encode("a")]) == "a"


@pytest.mark.parametrize("ids", [[-1], [2**32], [1.5], ["a"], [None]])
def test_ids_that_are_none(tokenizer: Tokenizer, ids: list[int]) -> None:
    with pytest.raises(InvalidParameterError, match="token_ids: must be whole numbers"):
        tokenizer.decode(ids)


@pytest.mark.parametrize("text", [None, 3, b"bytes", ["a"], "\ud800"])
def test_text_that_is_none(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidParameterError, match=r"^text: "):
        tokenizer.encode(text)


def test_half_a_character_is_named(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        tokenizer.encode("ab\ud800")
    assert str(caught.value) == (
        "text: has half a character (\\ud800, a lone surrogate) at position 2; give whole characters"
    )


class TestFiles:
    def test_file_or_folder(self, source: str, tmp_path: Path) -> None:
        file = tmp_path / "tokenizer.json"
        file.write_text(source, encoding="utf-8")
        assert Tokenizer.from_file(file).fingerprint == Tokenizer.from_file(tmp_path).fingerprint

    def test_missing(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "tokenizer.json", tmp_path / "a" / "b"):
            with pytest.raises(BundleNotFoundError, match="no tokenizer at"):
                Tokenizer.from_file(path)

    @pytest.mark.parametrize("content", [b"", b"{}", b"[1, 2", b"\xff\xfe", b'{"version": "1.0", "model": {}}'])
    def test_no_tokenizer(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(BundleCorruptError, match=r"tokenizer\.json"):
            Tokenizer.from_file(tmp_path)

    def test_no_tokenizer_from_a_server(self) -> None:
        with pytest.raises(InvalidParameterError, match="tokenizer: is not a tokenizer"):
            Tokenizer.from_json("{}")
