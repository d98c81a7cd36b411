"""Checks of message fields at construction; each raises InvalidParameterError that names the field."""

from __future__ import annotations

from .codes import MAX_SPECIAL_IDS
from .errors import InvalidParameterError
from .fingerprint import FINGERPRINT_BYTES

__all__ = [
    "U16",
    "U31",
    "U32",
    "U64",
    "check_extensions",
    "check_fingerprint",
    "check_integers",
    "check_special_ids",
    "check_text",
    "check_unsigned",
    "plain_text",
]

U16, U31, U32, U64 = 1 << 16, 1 << 31, 1 << 32, 1 << 64

_INT_ONLY = {int}
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], " ")


def check_unsigned(field: str, value: int, below: int = U32, at_least: int = 0) -> None:
    """A plain int from ``at_least`` to ``below - 1``."""
    if type(value) is not int and (isinstance(value, bool) or not isinstance(value, int)):
        raise InvalidParameterError(field, f"must be an int, not {type(value).__name__}")
    if not at_least <= value < below:
        raise InvalidParameterError(field, f"must be from {at_least} to {below - 1}, not {value}")


def check_integers(field: str, values: tuple[int, ...], below: int = U31) -> None:
    """A tuple of plain ints, each from 0 to ``below - 1``; numpy integers must be converted first."""
    if type(values) is not tuple:
        raise InvalidParameterError(field, f"must be a tuple, not {type(values).__name__}")
    if not values:
        return
    if not set(map(type, values)) <= _INT_ONLY:
        raise InvalidParameterError(field, "must hold nothing but ints")
    low, high = min(values), max(values)
    if low < 0 or high >= below:
        raise InvalidParameterError(field, f"must be from 0 to {below - 1}, not {low if low < 0 else high}")


def check_special_ids(field: str, values: tuple[int, ...]) -> None:
    """Few enough token ids."""
    check_integers(field, values)
    if len(values) > MAX_SPECIAL_IDS:
        raise InvalidParameterError(field, f"at most {MAX_SPECIAL_IDS} ids, not {len(values)}")


def check_text(field: str, value: str, limit: int) -> None:
    """Text for people that fits ``limit`` bytes of UTF-8 and cannot steer the terminal it is printed on."""
    if plain_text(value) != value:
        raise InvalidParameterError(field, "must hold no control characters")
    try:
        size = len(value.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidParameterError(field, "must be valid Unicode, without lone surrogates") from None
    if size > limit:
        raise InvalidParameterError(field, f"at most {limit} bytes of UTF-8, not {size}")


def plain_text(value: str) -> str:
    """``value`` with every control character (C0, DEL, C1) made a space."""
    return value.translate(_CONTROLS)


def check_fingerprint(value: bytes) -> None:
    """Bytes as long as a fingerprint."""
    if type(value) is not bytes or len(value) != FINGERPRINT_BYTES:
        raise InvalidParameterError("fingerprint", f"must be {FINGERPRINT_BYTES} bytes")


def check_extensions(values: tuple[tuple[int, bytes], ...]) -> None:
    """Pairs of tag and content."""
    check_integers("extensions", tuple(tag for tag, _ in values), U32)
    if not all(type(content) is bytes for _, content in values):
        raise InvalidParameterError("extensions", "must be pairs of an int tag and bytes")
