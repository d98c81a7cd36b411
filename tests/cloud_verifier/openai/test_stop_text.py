"""Stop strings: what comes out is the text before the first that is complete, however the text is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from draftwire.cloud_verifier.openai.stop_text import StopText
from hypothesis import example, given
from hypothesis import strategies as st


def reference(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: read on until some stop string is complete; the longest of those takes its characters away."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(
    text=st.text("ab", max_size=14),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4),
    cuts=st.lists(st.integers(0, 14)),
)
@example(text="aab", stops=["ab"], cuts=[1, 2])
@example(text="abaabab", stops=["abab", "ba"], cuts=[])
def test_any_chunking_gives_the_text_before_the_first_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    stop_text, out = StopText(stops), ""
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    expected, found = reference(text, stops)
    for start, end in pairwise(places):
        out += stop_text.push(text[start:end])
        assert expected.startswith(out), "more came out than is certain"
    out += stop_text.finish()
    assert (out, stop_text.found) == (expected, found)


def test_only_what_may_begin_a_stop_is_held_back() -> None:
    stop_text = StopText(["END", "\n\n"])
    assert stop_text.push("one E") == "one "
    assert stop_text.push("N") == ""
    assert stop_text.push("tity\n") == "ENtity"
    assert stop_text.push("two") == "\ntwo"


def test_nothing_comes_out_after_a_stop() -> None:
    stop_text = StopText(["."])
    assert stop_text.push("a.b") == "a"
    assert stop_text.push("c") == ""
    assert stop_text.finish() == ""


@pytest.mark.parametrize("text", ["", "abc"])
def test_without_stops_text_passes(text: str) -> None:
    assert StopText([]).push(text) == text
