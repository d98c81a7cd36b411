from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from draftwire.edge_client import AsyncEdgeClient, EdgeClient
from draftwire.edge_client.client_settings import ClientArguments, ClientSettings, GenerationArguments
from draftwire.edge_client.options import GenerationOptions
from draftwire.edge_client.transport import websocket_url
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.sampling import SamplingParams


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("draft", {"draft": 5}),
        ("draft", {"draft": ""}),
        ("tokenizer", {"tokenizer": 1.5}),
        ("api_key", {"api_key": "a\nb"}),
        ("api_key", {"api_key": "ä€"}),
        ("api_key", {"api_key": "a b"}),
        ("threads", {"threads": 0}),
        ("providers", {"providers": ["NoSuchProvider"]}),
        ("pause_drafting", {"pause_drafting": 5}),
        ("require_draft", {"require_draft": True}),
        ("timeout", {"timeout": -1}),
        ("timeout", {"timeout": "x"}),
        ("timeout", {"timeout": float("nan")}),
        ("reconnect_seconds", {"reconnect_seconds": -0.1}),
        ("reconnect_seconds", {"reconnect_seconds": float("inf")}),
        ("reconnect_seconds", {"reconnect_seconds": float("nan")}),
        ("reconnect_seconds", {"reconnect_seconds": True}),
        ("reconnect_seconds", {"reconnect_seconds": "30"}),
        ("on_verifier_loss", {"on_verifier_loss": "draft_only"}),
        ("on_verifier_loss", {"on_verifier_loss": "panic"}),
        ("drft", {"drft": "x"}),
        ("temperature", {"temperature": float("nan")}),
    ],
)
@pytest.mark.parametrize("client", [AsyncEdgeClient, EdgeClient])
async def test_what_is_given_wrong_is_told_at_once(client: Any, field: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        client("ws://127.0.0.1:9", **options)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", [5, None, b"ws://host", "", "x y", "ftp://host", "ws://", "ws://user:pw@host", "ws://h:0"]
)
def test_a_bad_address_is_named(url: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        websocket_url(url)
    assert caught.value.field == "url"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost", "ws://localhost:8300/v1/verify"),
        ("localhost:9000", "ws://localhost:9000/v1/verify"),
        ("ws://host", "ws://host/v1/verify"),
        ("https://host/", "wss://host/v1/verify"),
        ("wss://host/behind/a/proxy?x=1", "wss://host/behind/a/proxy?x=1"),
    ],
)
def test_addresses(given: str, meant: str) -> None:
    assert websocket_url(given) == meant


@pytest.mark.parametrize("url", [[], (), ["ws://host", "ftp://host"], ["ws://host", 5], {"ws://host"}])
@pytest.mark.parametrize("client", [AsyncEdgeClient, EdgeClient])
def test_a_bad_address_among_several_is_named(client: Any, url: Any) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        client(url)
    assert caught.value.field == "url"


def test_several_addresses_keep_their_order_and_count_once() -> None:
    options: dict[str, Any] = dict.fromkeys(["draft", "tokenizer", "api_key", "threads", "pause_drafting"])
    options |= {"require_draft": False, "retain_context": False, "timeout": 1}
    assert ClientSettings.of("b", **options).urls == ("b",)
    settings = ClientSettings.of(["b:1", "a", "b:1"], **options, reconnect_seconds=0)
    assert settings.urls == ("b:1", "a")
    assert settings.reconnect_seconds == 0.0
    assert ClientSettings.of(("b",), **options).reconnect_seconds is None


def test_a_bad_key_is_not_repeated() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        AsyncEdgeClient("ws://host", api_key="se cret")
    assert "cret" not in str(caught.value)


def test_settings_do_not_show_the_key() -> None:
    settings = ClientSettings.of(
        "ws://host",
        draft=Path("x"),
        tokenizer=None,
        api_key="topsecret",
        threads=None,
        pause_drafting=None,
        require_draft=False,
        retain_context=False,
        timeout=1,
    )
    assert settings.headers["Authorization"] == "Bearer topsecret"
    assert "topsecret" not in repr(settings)


def test_the_types_name_every_option() -> None:
    names = {*GenerationOptions.__dataclass_fields__, *SamplingParams.names()} - {"sampling"}
    assert set(GenerationArguments.__annotations__) == names
    own = set(ClientSettings.__dataclass_fields__) - {"urls", "headers", "paused"} | {
        "api_key",
        "pause_drafting",
        "figures",
    }
    assert set(ClientArguments.__annotations__) == names | own
