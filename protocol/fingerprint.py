"""The vocabulary fingerprint: equal on both ends exactly when token ids mean the same on both ends."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

__all__ = ["FINGERPRINT_BYTES", "vocabulary_fingerprint"]

FINGERPRINT_BYTES = 16


def vocabulary_fingerprint(vocabulary: Mapping[str, int], special_tokens: Iterable[str]) -> bytes:
    """Hash what token ids mean.

    Args:
        vocabulary: token text to id, added tokens included.
        special_tokens: texts of the added tokens that are special (never part of plain text).

    Returns:
        The first 16 bytes of SHA-256 over the entries ordered by id then text, each as
        ``id`` (4 bytes, little-endian), ``special`` (1 byte), text length (4 bytes) and text in UTF-8.
        Padding ids that carry no token are absent, so a padded target vocabulary has the same fingerprint.
    """
    special = frozenset(special_tokens)
    digest = hashlib.sha256(b"draftwire vocabulary 1\n")
    for text, token in sorted(vocabulary.items(), key=lambda entry: (entry[1], entry[0])):
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(token.to_bytes(4, "little") + bytes([text in special]))
        digest.update(len(encoded).to_bytes(4, "little") + encoded)
    return digest.digest()[:FINGERPRINT_BYTES]
