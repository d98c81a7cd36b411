"""API keys: made, hashed, found, and taken out of the environment."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest
from draftwire.cloud_verifier.service.keys import (
    KEYS_VARIABLE,
    Keyring,
    KnownKey,
    hash_key,
    key_name,
    keys_from_environment,
    new_key,
)
from draftwire.protocol.errors import InvalidParameterError

SECRET = "dw_0123456789abcdef"


def test_a_new_key_is_random_and_fit_for_a_header() -> None:
    made = {new_key() for _ in range(50)}
    assert len(made) == 50
    assert all(re.fullmatch(r"dw_[A-Za-z0-9_-]{43}", key) for key in made)


def test_what_is_stored_is_the_plain_sha256() -> None:
    assert hash_key(SECRET) == "sha256:" + hashlib.sha256(SECRET.encode()).hexdigest()


def test_a_key_is_found_by_any_of_its_names_hashes() -> None:
    old, new, other = new_key(), new_key(), new_key()
    ring = Keyring(
        {"alice": [hash_key(old), hash_key(new).upper().replace("SHA256", "sha256")], "bob": [hash_key(other)]}
    )
    assert len(ring) == 3
    assert [ring.find(key).name for key in (old, new, other)] == ["alice", "alice", "bob"]  # type: ignore[union-attr]
    assert ring.find(old) in ring
    for wrong in ("", "x", old[:-1], old + "x", hash_key(old), "\udcff", "é" * 40):
        assert ring.find(wrong) is None
    assert KnownKey("alice", hash_key("gone")) not in ring


def test_all_keys_are_compared_in_constant_time_whichever_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    held = [new_key() for _ in range(4)]
    ring = Keyring({f"n{index}": [hash_key(key)] for index, key in enumerate(held)})
    compared: list[str] = []
    compare_digest = hmac.compare_digest

    def compare(known: str, shown: str) -> bool:
        compared.append(known)
        return compare_digest(known, shown)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for shown in (held[0], held[3], "wrong"):
        compared.clear()
        ring.find(shown)
        assert compared == [hash_key(key) for key in held]


def test_no_key_is_kept_and_none_is_shown() -> None:
    ring = Keyring({"alice": [hash_key(SECRET)]})
    assert SECRET not in repr(vars(ring))
    assert SECRET not in repr(ring.find(SECRET))


@pytest.mark.parametrize(
    "digest", ["", "sha256:", "sha256:" + "0" * 63, "sha256:" + "g" * 64, "0" * 64, "md5:" + "0" * 64, 7, None]
)
def test_a_hash_that_is_none_is_refused_by_name(digest: object) -> None:
    with pytest.raises(InvalidParameterError, match=r"keys\.alice\.sha256"):
        Keyring({"alice": [digest]})  # type: ignore[list-item]


def test_two_names_may_not_share_a_key() -> None:
    with pytest.raises(InvalidParameterError, match=r"bob\.sha256.*alice"):
        Keyring({"alice": [hash_key(SECRET)], "bob": [hash_key(SECRET)]})


def test_names_are_fit_for_logs() -> None:
    assert key_name("team-7.prod_x", field="name") == "team-7.prod_x"
    for wrong in ("", "-x", "a b", "a\nb", "a" * 65, "é"):
        with pytest.raises(InvalidParameterError, match="NAME"):
            key_name(wrong, field="NAME")


def test_the_environments_keys_are_hashed_and_removed() -> None:
    second = "another-key-0123456789="
    environment = {KEYS_VARIABLE: f" alice={SECRET}, bob=bobs-key-0123456789 ,alice={second},", "OTHER": "stays"}
    keys = keys_from_environment(environment)
    assert keys == {"alice": [hash_key(SECRET), hash_key(second)], "bob": [hash_key("bobs-key-0123456789")]}
    assert environment == {"OTHER": "stays"}
    assert keys_from_environment(environment) == {}


@pytest.mark.parametrize(
    "text",
    [SECRET, f"a b={SECRET}", f"={SECRET}", "alice=short", "alice=", f"alice={SECRET} and more", f"ok=x,{SECRET}"],
)
def test_a_wrong_environment_is_refused_without_repeating_a_key(text: str) -> None:
    environment = {KEYS_VARIABLE: text}
    with pytest.raises(InvalidParameterError, match=KEYS_VARIABLE) as caught:
        keys_from_environment(environment)
    assert SECRET not in str(caught.value)
    assert environment == {}
