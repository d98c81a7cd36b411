"""API keys: who a key belongs to, found without keeping any key.

A key made here is 256 random bits, so what is stored is its plain SHA-256. Slow, salted hashes protect passwords,
which can be guessed from a list; 256 random bits cannot be, and a fast hash lets each call be checked at no cost.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass

from ...protocol.errors import InvalidParameterError

__all__ = [
    "KEYS_VARIABLE",
    "Keyring",
    "KnownKey",
    "check_hash",
    "hash_key",
    "key_name",
    "keys_from_environment",
    "new_key",
]

KEYS_VARIABLE = "DRAFTWIRE_API_KEYS"
"""Of the environment: ``name=key`` pairs with commas between them."""

_PREFIX = "sha256:"
_MIN_CHARACTERS = 16
"""Of keys that others made: shorter ones can be found by trying all."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def new_key() -> str:
    """A fresh key of 256 random bits, in characters that every header and file can carry."""
    return f"dw_{secrets.token_urlsafe(32)}"


def hash_key(key: str) -> str:
    """``sha256:`` and 64 hexadecimal digits: what is stored of a key."""
    return _PREFIX + hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def key_name(name: str, *, field: str) -> str:
    """The name itself, where it is fit for logs and metrics; InvalidParameterError where it is not."""
    if not _NAME.fullmatch(name):
        raise InvalidParameterError(field, f"{name!r} must be 1 to 64 letters, digits, '.', '_' or '-'")
    return name


@dataclass(frozen=True, slots=True)
class KnownKey:
    """Whose key it is, and its hash, which tells several keys of one name apart. No secret."""

    name: str
    digest: str


class Keyring:
    """All keys that open the door.

    Args:
        keys: hashes as :func:`hash_key` makes them, by the name they belong to; several let keys be rotated.

    Raises:
        InvalidParameterError: a hash is none, or belongs to two names.
    """

    def __init__(self, keys: Mapping[str, Iterable[str]] | None = None) -> None:
        self._keys = tuple(
            KnownKey(name, check_hash(digest, field=f"keys.{name}.sha256"))
            for name, digests in (keys or {}).items()
            for digest in digests
        )
        owners: dict[str, str] = {}
        for known in self._keys:
            if owners.setdefault(known.digest, known.name) != known.name:
                raise InvalidParameterError(
                    f"keys.{known.name}.sha256", f"holds a key of {owners[known.digest]}'s; each needs keys of its own"
                )

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def find(self, key: str) -> KnownKey | None:
        """Whose key this is. Takes as long whichever it is, or none: all are compared, each in constant time."""
        shown, found = hash_key(key), None
        for known in self._keys:
            if hmac.compare_digest(known.digest, shown):
                found = known
        return found


def check_hash(digest: object, *, field: str) -> str:
    """A stored hash, in lower case; InvalidParameterError where it is none."""
    if not isinstance(digest, str) or not re.fullmatch(r"sha256:[0-9a-fA-F]{64}", digest):
        raise InvalidParameterError(
            field, "must be 'sha256:' and 64 hexadecimal digits, as draftwire-verifier key NAME prints them"
        )
    return digest.lower()


def keys_from_environment(environment: MutableMapping[str, str]) -> dict[str, list[str]]:
    """Hashes by name from :data:`KEYS_VARIABLE`, which is removed, so that no child process and no dump has it.

    Raises:
        InvalidParameterError: it cannot be read; the message repeats no key.
    """
    text = environment.pop(KEYS_VARIABLE, "")
    keys: dict[str, list[str]] = {}
    for number, pair in enumerate(filter(None, (part.strip() for part in text.split(","))), 1):
        name, equals, key = pair.partition("=")
        if not equals:
            raise InvalidParameterError(KEYS_VARIABLE, f"entry {number} must look like NAME=KEY")
        if not _NAME.fullmatch(name):  # not repeated: it may be a part of a key
            raise InvalidParameterError(
                KEYS_VARIABLE, f"the name of entry {number} must be 1 to 64 letters, digits, '.', '_' or '-'"
            )
        if len(key) < _MIN_CHARACTERS or not all("!" <= character <= "~" for character in key):
            raise InvalidParameterError(
                KEYS_VARIABLE,
                f"the key of {name} must be at least {_MIN_CHARACTERS} visible characters; "
                f"draftwire-verifier key {name} makes one",
            )
        keys.setdefault(name, []).append(hash_key(key))
    return keys
