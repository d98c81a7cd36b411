"""A request's fields: JSON from anybody, read one by one, and each refused by its name."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ...protocol.errors import InvalidParameterError

__all__ = ["Fields", "check_text", "read_json", "shown", "whole_number"]

_SHOWN = 60


def read_json(body: bytes) -> dict[str, object]:
    """The object that a request's body holds.

    Raises:
        InvalidParameterError: it holds none; the field is ``body``.
    """
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidParameterError("body", "is not UTF-8; send JSON in UTF-8") from None
    except RecursionError:
        raise InvalidParameterError("body", "is nested too deeply; send flatter JSON") from None
    except json.JSONDecodeError as error:
        raise InvalidParameterError("body", f"is not JSON: {' '.join(str(error).split())[:100]}") from None
    except ValueError:
        raise InvalidParameterError("body", "holds a number of thousands of digits; send a shorter one") from None
    if not isinstance(value, dict):
        raise InvalidParameterError("body", f"must be a JSON object, not {shown(value)}")
    return value


class Fields:
    """An object's fields, each to be read once. Null counts as absent, as OpenAI has it.

    Args:
        values: the object.
        path: of the object in the request, before its fields' names in errors.
    """

    def __init__(self, values: Mapping[str, object], *, path: str = "") -> None:
        self._left = {name: value for name, value in values.items() if value is not None}
        self._path = path

    def name(self, field: str) -> str:
        """What an error calls a field."""
        return f"{self._path}{field}"

    def take(self, field: str) -> object | None:
        """Any value; None where there is none."""
        return self._left.pop(field, None)

    def text(self, field: str) -> str | None:
        """A string."""
        value = self.take(field)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(field, f"must be a string, not {shown(value)}")

    def flag(self, field: str) -> bool:
        """True or false; absent is false."""
        value = self.take(field)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self.wrong(field, f"must be true or false, not {shown(value)}")

    def whole(self, field: str, *, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``."""
        value = self.take(field)
        if value is None:
            return None
        number = whole_number(value)
        if number is None or not low <= number <= high:
            raise self.wrong(field, f"must be a whole number from {low} to {high}, not {shown(value)}")
        return number

    def real(self, field: str, default: float) -> float:
        """A number; NaN and infinities are numbers here, and for the caller to refuse."""
        value = self.take(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(field, f"must be a number, not {shown(value)}")
        return value

    def mapping(self, field: str) -> Mapping[str, object] | None:
        """An object."""
        value = self.take(field)
        if value is None or isinstance(value, dict):
            return value
        raise self.wrong(field, f"must be an object, not {shown(value)}")

    def only(self, field: str, *neutral: object, why: str) -> None:
        """A field that is not supported: refused, unless it asks for nothing."""
        value = self.take(field)
        if value is not None and not any(type(value) is type(each) and value == each for each in neutral):
            raise self.wrong(field, f"is not supported: {why}")

    def ignore(self, *fields: str) -> None:
        """Fields that change nothing of the answer."""
        for field in fields:
            self._left.pop(field, None)

    def finish(self) -> None:
        """Refuse what nobody has read."""
        for field in self._left:
            raise self.wrong(shown(field, quoted=False), "is no known field; leave it out")

    def wrong(self, field: str, problem: str) -> InvalidParameterError:
        """An error about a field, to be raised."""
        return InvalidParameterError(self.name(field), problem)


def check_text(text: str, *, field: str) -> None:
    """Refuse text with half a character in it, which JSON can say and no tokenizer knows."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        problem = f"has half a character ({half}, a lone surrogate) at position {error.start}; send whole characters"
        raise InvalidParameterError(field, problem) from None


def whole_number(value: object) -> int | None:
    """A whole number, also one written as 5.0; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def shown(value: object, *, quoted: bool = True) -> str:
    """A value from a request as an error shows it: short, in one line."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int | float) and abs(value) >= 10**_SHOWN:
        return "a number beyond all bounds"
    text = json.dumps(value) if quoted else json.dumps(value)[1:-1]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
