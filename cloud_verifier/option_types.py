"""Values of command-line options: from what was typed to what is meant, or what is wrong with it."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

__all__ = ["LOWEST_RATE", "port", "positive", "rate", "seconds", "size", "whole"]

LOWEST_RATE = 0.001
"""Of requests a minute, one in eleven hours: what is less is meant as never, and a wait must be a number to be told."""


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text)
    if value < 1:
        raise ArgumentTypeError("must be at least 1")
    return value


def whole(text: str) -> int:
    """A whole number, 0 included."""
    value = int(text)
    if value < 0:
        raise ArgumentTypeError("must not be negative")
    return value


def port(text: str) -> int:
    """A TCP port; 0 picks a free one."""
    value = int(text)
    if not 0 <= value < 65536:
        raise ArgumentTypeError("must be from 0 to 65535")
    return value


def rate(text: str) -> float:
    """So many in a time."""
    value = float(text)
    if not LOWEST_RATE <= value < 1e9:
        raise ArgumentTypeError(f"must be at least {LOWEST_RATE}")
    return value


def seconds(text: str) -> float:
    """A length of time, 0 included."""
    value = float(text)
    if not 0 <= value < 1e9:
        raise ArgumentTypeError("must be seconds, 0 or more")
    return value


def size(text: str) -> int:
    """Bytes, with K, M, G or T for powers of 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None or float(match[1]) == 0:
        raise ArgumentTypeError(f"must be a size such as 4G or 800M, not {text!r}")
    return int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
