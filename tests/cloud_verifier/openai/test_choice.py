"""One choice: text, count of tokens and end belong together."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.openai.choice import Choice
from draftwire.edge_client.tokenizer import Tokenizer
from draftwire.protocol.messages import EndReason
from hypothesis import given, settings
from hypothesis import strategies as st

from ...edge_client.conftest import byte_level_tokenizer

TOKENIZER = Tokenizer.from_json(byte_level_tokenizer().to_str())


def choice_after(prompt: str, *, stops: tuple[str, ...] = ()) -> Choice:
    return Choice(index=0, decoder=TOKENIZER, prompt_ids=TOKENIZER.encode(prompt), stops=stops)


def feed(choice: Choice, ids: list[int]) -> list[str]:
    """The text of each token, as long as the choice has not ended."""
    return [choice.take(token) for token in ids if choice.finish_reason is None]


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=20), end=st.sampled_from([EndReason.STOP, EndReason.LENGTH]))
def test_joined_deltas_are_the_text_at_once(text: str, end: EndReason) -> None:
    ids = TOKENIZER.encode(text)
    choice = choice_after("")
    deltas = feed(choice, ids)
    assert "".join(deltas) + choice.end(end) == TOKENIZER.decode(ids)
    assert choice.tokens == len(ids)
    assert choice.finish_reason == end.name.lower()
    if "�" not in text:
        assert "�" not in "".join(deltas)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_text_that_ends_inside_a_character_says_so_at_its_end(size: int) -> None:
    ids = TOKENIZER.encode("🙂")
    assert len(ids) == 4
    choice = choice_after("a")
    assert feed(choice, ids[:size]) == (["", "", "", "🙂"][:size] if size == 4 else [""] * size)
    assert choice.end(EndReason.LENGTH) == ("" if size == 4 else TOKENIZER.decode(ids[:size]))


@pytest.mark.parametrize("text", ["STOP", "STOP and on", "the fox STOP", "the fox STOP and on", "né🙂STOP🙂"])
@pytest.mark.parametrize("stop", ["STOP", "TO", "P"])
def test_a_stop_string_ends_text_and_count_together(text: str, stop: str) -> None:
    ids = TOKENIZER.encode(text)
    choice = choice_after("", stops=("never", stop))
    out = "".join(feed(choice, ids))
    assert out == text[: text.index(stop)]
    assert choice.finish_reason == "stop"
    needed = next(count for count in range(1, len(ids) + 1) if stop in TOKENIZER.decode(ids[:count]))
    assert choice.tokens == needed
    assert choice.take(ids[0]) == ""
    assert choice.end(EndReason.CANCELLED) == ""
    assert (choice.tokens, choice.finish_reason) == (needed, "stop")


def test_a_character_that_the_prompt_began_is_given_whole() -> None:
    ids = TOKENIZER.encode("a🙂")
    choice = Choice(index=0, decoder=TOKENIZER, prompt_ids=ids[:-2])
    assert feed(choice, ids[-2:]) == ["", "🙂"]


def test_what_was_held_for_a_stop_string_comes_at_the_end() -> None:
    choice = choice_after("", stops=("STOPPED",))
    out = "".join(feed(choice, TOKENIZER.encode("the STOP")))
    assert out == "the "
    assert choice.end(EndReason.LENGTH) == "STOP"
    assert choice.finish_reason == "length"


def test_a_stop_string_of_the_prompt_is_the_prompts() -> None:
    choice = choice_after("a STOP", stops=("STOP",))
    assert "".join(feed(choice, TOKENIZER.encode(" b"))) == " b"
    assert choice.finish_reason is None


def test_special_tokens_count_and_give_no_text() -> None:
    special = TOKENIZER.token_to_id("<|im_end|>")
    assert special is not None
    choice = choice_after("a")
    assert choice.take(special) == ""
    assert choice.tokens == 1
