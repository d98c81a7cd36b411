"""Which pages may use the service."""

from __future__ import annotations

import pytest
from draftwire.cloud_verifier.service.origin import check_origin, cross_origin_headers, is_allowed, preflight_headers
from draftwire.protocol.errors import InvalidParameterError


@pytest.mark.parametrize(
    ("origin", "host", "keyed", "allowed"),
    [
        ("http://127.0.0.1:8300", "127.0.0.1:8300", False, True),
        ("http://localhost:8300", "localhost:8300", False, True),
        ("http://[::1]:8300", "[::1]:8300", False, True),
        ("http://10.0.0.7", "10.0.0.7", False, True),
        ("https://app.example", "app.example", True, True),
        ("https://APP.example", "app.example:443", True, True),
        ("http://app.example", "app.example:80", True, True),
        # A name that points to this machine proves nothing where no key is asked for.
        ("http://evil.example:8300", "evil.example:8300", False, False),
        ("http://127.0.0.1:8301", "127.0.0.1:8300", False, False),
        ("http://127.0.0.1", "127.0.0.1:8300", True, False),
        ("https://evil.example", "app.example", True, False),
        ("https://app.example.evil.example", "app.example", True, False),
        ("https://app.example@evil.example", "app.example", True, False),
        ("null", "127.0.0.1:8300", True, False),
        ("", "127.0.0.1:8300", True, False),
        ("", "", True, False),
        ("http://", "", True, False),
        ("http://[", "[", True, False),
        ("http://x:99999999", "x:99999999", True, False),
        ("file://", "127.0.0.1", True, False),
    ],
)
def test_the_same_origin(origin: str, host: str, keyed: bool, allowed: bool) -> None:
    assert is_allowed(origin, host=host, listed=(), keyed=keyed) is allowed


def test_listed_origins() -> None:
    listed = {check_origin("https://App.example"), check_origin("http://localhost:5173")}
    assert is_allowed("https://app.EXAMPLE", host="api", listed=listed, keyed=False)
    assert not is_allowed("http://app.example", host="api", listed=listed, keyed=False)
    assert not is_allowed("http://localhost", host="api", listed=listed, keyed=False)
    assert is_allowed("null", host="api", listed={check_origin("*")}, keyed=False)


@pytest.mark.parametrize(
    "text", ["", "app.example", "https://", "https://a/", "https://a?b", "https://u@a", "https://a b", "https://[", "x"]
)
def test_an_origin_that_is_none(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="origin"):
        check_origin(text)


def test_what_a_browser_is_told() -> None:
    assert cross_origin_headers("https://a")["Access-Control-Allow-Origin"] == "https://a"
    assert cross_origin_headers("https://a")["Vary"] == "Origin"
    asked = {"access-control-request-headers": "authorization, content-type,x-stainless-os"}
    headers = preflight_headers("https://a", asked, methods="POST")
    assert headers["Access-Control-Allow-Headers"] == "authorization, content-type,x-stainless-os"
    assert headers["Access-Control-Allow-Methods"] == "POST"
    for wrong in ("", "a b", "a\r\nSet-Cookie: x", "é", ","):
        assert "Access-Control-Allow-Headers" not in preflight_headers(
            "https://a", {"access-control-request-headers": wrong}, methods="POST"
        )
