"""Fields of a request: each read by its type, and each refused by its name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from draftwire.cloud_verifier.openai.fields import Fields, read_json, shown
from draftwire.protocol.errors import InvalidParameterError
from hypothesis import given
from hypothesis import strategies as st

ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def outcome_of(action: Callable[[], Any]) -> Any:
    """What an action returns, or the error that it raises."""
    try:
        return action()
    except InvalidParameterError as error:
        return error


def field_of(body: bytes) -> str:
    with pytest.raises(InvalidParameterError) as caught:
        read_json(body)
    assert "\n" not in str(caught.value)
    return caught.value.field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"a": 1} {}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        "{}".encode("utf-16"),
    ],
    ids=range(12),
)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    assert field_of(body) == "body"


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_refused(body: bytes) -> None:
    outcome = outcome_of(lambda: read_json(body))
    assert isinstance(outcome, dict) or outcome.field == "body"


READERS: dict[str, tuple[Callable[[Fields], Any], Callable[[Any], bool]]] = {
    "text": (lambda fields: fields.text("x"), lambda value: isinstance(value, str)),
    "flag": (lambda fields: fields.flag("x"), lambda value: isinstance(value, bool)),
    "real": (lambda fields: fields.real("x", 0.5), lambda value: type(value) in (int, float)),
    "mapping": (lambda fields: fields.mapping("x"), lambda value: isinstance(value, dict)),
    "whole": (
        lambda fields: fields.whole("x", low=-5, high=5),
        lambda value: type(value) in (int, float) and value in range(-5, 6),
    ),
}


@pytest.mark.parametrize("reader", READERS)
@given(value=ANY_JSON)
def test_a_reader_takes_its_kind_and_refuses_all_else_by_name(reader: str, value: Any) -> None:
    read, takes = READERS[reader]
    outcome = outcome_of(lambda: read(Fields({"x": value}, path="in.")))
    if value is None:
        assert outcome in (None, False, 0.5)
    elif takes(value):
        assert outcome == value or value != value
    else:
        assert isinstance(outcome, InvalidParameterError)
        assert outcome.field == "in.x"
        assert len(str(outcome)) < 300


@pytest.mark.parametrize("value", [6, -6, 2.5, math.nan, math.inf, True, "3", 10**400])
def test_a_whole_number_is_within_its_bounds(value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=r"^n: must be a whole number from -5 to 5"):
        Fields({"n": value}).whole("n", low=-5, high=5)
    assert Fields({"n": 5.0}).whole("n", low=-5, high=5) == 5


def test_null_is_absent() -> None:
    fields = Fields(dict.fromkeys(("a", "b", "c", "d"), None))
    assert (fields.text("a"), fields.flag("b"), fields.real("c", 0.5)) == (None, False, 0.5)
    fields.finish()


def test_what_nobody_read_is_refused_by_name() -> None:
    fields = Fields({"known": 1, "other": 2, "ignored": 3})
    fields.take("known")
    fields.ignore("ignored")
    with pytest.raises(InvalidParameterError, match=r"^other: is no known field"):
        fields.finish()


@pytest.mark.parametrize("value", [0, "", True, [1], {"type": "json"}])
def test_what_is_not_supported_is_refused_unless_it_asks_for_nothing(value: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"^x: is not supported: no"):
        Fields({"x": value}).only("x", False, [], {"type": "text"}, why="no")
    for neutral in (False, [], {"type": "text"}, None):
        fields = Fields({"x": neutral})
        fields.only("x", False, [], {"type": "text"}, why="no")
        fields.finish()


@given(ANY_JSON)
def test_what_an_error_shows_is_short_and_one_line(value: Any) -> None:
    assert len(shown(value)) < 80
    assert "\n" not in shown(value)


def test_a_number_of_thousands_of_digits_is_called_so() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        read_json(b'{"seed": ' + b"9" * 10_000 + b"}")
    assert str(caught.value) == "body: holds a number of thousands of digits; send a shorter one"
