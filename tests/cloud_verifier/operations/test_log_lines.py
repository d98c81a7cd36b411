"""Lines that can be parsed, cannot be forged, and hide credentials."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from draftwire.cloud_verifier.operations.log_lines import JsonLines, PlainLines
from hypothesis import given
from hypothesis import strategies as st

AT = datetime(2026, 5, 17, 8, 9, 10, 123000, UTC).timestamp()


def record(message: str = "hello %s", *args: object, error: BaseException | None = None, **extra: Any) -> Any:
    logger = logging.getLogger("draftwire.test")
    trace = (type(error), error, error.__traceback__) if error is not None else None
    made = logger.makeRecord(logger.name, logging.WARNING, __file__, 1, message, args, trace, extra=extra)
    made.created = AT
    return made


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_line_of_json() -> None:
    line = JsonLines().format(record("hello %s", "you", request_id="r-1", tokens=5, share=0.25, first=None, ok=True))
    assert json.loads(line) == {
        "ts": "2026-05-17T08:09:10.123Z",
        "level": "warning",
        "logger": "draftwire.test",
        "message": "hello you",
        "request_id": "r-1",
        "tokens": 5,
        "share": 0.25,
        "first": None,
        "ok": True,
    }


def test_an_exception_is_one_field() -> None:
    line = JsonLines().format(record("failed", error=raised(ValueError("two\nlines"))))
    assert "\n" not in line
    trace = json.loads(line)["exception"]
    assert trace.startswith("Traceback (most recent call last)")
    assert trace.endswith("ValueError: two\nlines")


def test_numbers_that_json_lacks_and_things_it_does_not_know() -> None:
    line = JsonLines().format(record("x", nan=float("nan"), most=float("inf"), path=sys, some=(1, {2})))
    parsed = json.loads(line, parse_constant=pytest.fail)
    assert (parsed["nan"], parsed["most"], parsed["some"]) == ("nan", "inf", [1, "{2}"])


def test_what_is_logged_beside_it_cannot_take_the_place_of_what_it_is() -> None:
    parsed = json.loads(JsonLines().format(record("true", level="info", ts="never", logger="another")))
    assert (parsed["message"], parsed["level"], parsed["logger"]) == ("true", "warning", "draftwire.test")


@given(st.text(), st.text())
def test_any_text_is_one_line_of_json(message: str, value: str) -> None:
    line = JsonLines().format(record("%s", message, agent=value))
    assert len(line.splitlines()) == 1
    if "earer" not in message.lower() + value.lower() and "asic" not in message.lower() + value.lower():
        parsed = json.loads(line)
        assert (parsed["message"], parsed["agent"]) == (message, value)


@given(st.text())
def test_any_text_is_one_line_for_people(message: str) -> None:
    line = PlainLines().format(record("%s", message))
    assert len(line.splitlines()) == 1
    assert " WARNING draftwire.test: " in line


def test_a_forged_line_is_no_line() -> None:
    forged = "agent\n2026-05-17 08:09:10.123+00:00 CRITICAL root: all is lost\x1b[31m"
    line = PlainLines().format(record("from %s", forged))
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    error = PlainLines().format(record("failed", error=raised(ValueError(forged))))
    assert [each for each in error.splitlines()[1:] if not each.startswith("    ")] == []


SECRETS = ["Bearer s3cret-KEY_1/2+3==", "authorization: bearer s3cret-KEY_1/2+3==", "Basic s3cret-KEY_1/2+3=="]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("lines", [JsonLines(), PlainLines()], ids=["json", "plain"])
def test_credentials_are_hidden_wherever_they_stand(secret: str, lines: logging.Formatter) -> None:
    error = raised(ValueError(f"bad header {secret}"))
    line = lines.format(record("> %s", secret, error=error, header=secret, headers=[secret], other={"x": secret}))
    assert "s3cret" not in line
    assert "[hidden]" in line


def test_a_very_long_text_is_cut() -> None:
    parsed = json.loads(JsonLines().format(record("%s", "x" * 100_000)))
    assert len(parsed["message"]) < 9000
    assert parsed["message"].endswith("[and 91808 more]")
