"""Options, file and environment together; reloads that succeed, and reloads that change nothing."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from draftwire.cloud_verifier.engine.speculation import Speculation
from draftwire.cloud_verifier.engine.stream import Owner
from draftwire.cloud_verifier.service.door import Door, add_door_options, build_door
from draftwire.cloud_verifier.service.http import Refusal
from draftwire.cloud_verifier.service.keys import KEYS_VARIABLE, hash_key, new_key
from draftwire.protocol.errors import InvalidParameterError
from draftwire.protocol.messages import Message, Open
from draftwire.protocol.sampling import SamplingParams

from .certificates import Authority

ALICE, BOB = new_key(), new_key()
REQUEST = Open(stream=1, token_ids=(1,), prompt_length=1, params=SamplingParams(), max_tokens=1, seed=0, drafting=True)


class Asking(Owner):
    """An owner that hears nothing."""

    def __init__(self, route: str = "") -> None:
        self.route = route

    def deliver(self, messages: Sequence[Message]) -> None:
        raise AssertionError(messages)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "verifier.toml"
    path.write_text(
        f'[keys.alice]\nsha256 = ["{hash_key(ALICE)}"]\n\n[limits]\nmax_connections = 9\nidle_seconds = 7\n'
    )
    return path


def parse(*arguments: str | Path, host: str = "127.0.0.1") -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default=host)
    add_door_options(parser)
    return parser.parse_args([str(each) for each in arguments])


def name_of(door: Door, key: str) -> str:
    """Whose name a key opens the door in; empty where it does not."""
    try:
        return door.doorkeeper.admit({"authorization": f"Bearer {key}"}, remote="").tenant.name
    except Refusal:
        return ""


def test_options_go_before_the_file(file: Path) -> None:
    door = build_door(
        parse("--config", file, "--max-connections", 3, "--requests-per-minute", 2.5, "--allow-origin", "https://a")
    )
    config = door.doorkeeper.config
    assert (config.limits.max_connections, config.limits.idle_seconds) == (3, 7.0)
    assert config.limits.requests_per_minute == 2.5
    assert config.origins == {"https://a"}
    assert (door.tls, door.scheme) == (None, "ws")


def test_without_anything_everybody_may_come_in() -> None:
    door = build_door(parse())
    assert name_of(door, "whatever") == "anybody"
    assert door.guardrails.decide(Asking(), REQUEST) is Speculation.ON


@pytest.mark.parametrize("terminal", [True, False])
def test_a_closed_terminal_ends_a_service_that_has_nothing_to_read_again(
    file: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)
    door = build_door(parse("--max-connections", 3))
    assert (door.on_hangup is None) is terminal
    door.reload()
    assert door.reloads == 0
    assert "nothing to read again" in caplog.text
    door = build_door(parse("--config", file))
    assert door.on_hangup == door.reload


def test_the_environments_keys_join_the_files(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"bob={BOB}")
    door = build_door(parse("--config", file))
    assert (name_of(door, ALICE), name_of(door, BOB)) == ("alice", "bob")
    door.reload()
    assert (door.reloads, name_of(door, BOB)) == (1, "bob")
    assert KEYS_VARIABLE not in os.environ


@pytest.mark.parametrize(
    ("host", "keyed", "warns"),
    [
        ("127.0.0.1", False, False),
        ("::1", False, False),
        ("localhost", False, False),
        ("0.0.0.0", False, True),
        ("::", False, True),
        ("gpu.example", False, True),
        ("0.0.0.0", True, False),
    ],
)
def test_a_service_that_all_can_reach_without_a_key_says_so(
    host: str, keyed: bool, warns: bool, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build_door(parse(*(["--config", file] if keyed else []), host=host))
    assert ("asks for no key" in caplog.text) is warns


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--tls-key", "x.pem"], "--tls-cert"),
        (["--tls-cert", "none.pem", "--tls-key", "none.key"], "TLS certificate: none.pem cannot be read"),
        (["--allow-origin", "app.example"], "origin"),
        (["--config", "none.toml"], "none.toml: cannot be read"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], problem: str) -> None:
    with pytest.raises(InvalidParameterError, match=problem):
        build_door(parse(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-connections", "0"],
        ["--idle-seconds", "-1"],
        ["--idle-seconds", "nan"],
        ["--requests-per-minute", "0"],
        ["--max-prompt-tokens", "x"],
    ],
)
def test_wrong_numbers_are_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(*arguments)
    assert arguments[0] in capsys.readouterr().err


# --- reloads ------------------------------------------------------------------------------------------------------


def test_a_reload_sets_keys_routes_limits_and_guardrails_anew(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    door = build_door(parse("--config", file))
    file.write_text(f"""
        [keys.bob]
        sha256 = ["{hash_key(BOB)}"]
        [limits]
        max_connections = 5
        [routes.chat]
        speculation = "shadow"
        [guardrails]
        min_acceptance = 0.5
    """)
    with caplog.at_level(logging.INFO):
        door.reload()
    assert (name_of(door, ALICE), name_of(door, BOB)) == ("", "bob")
    assert door.doorkeeper.config.limits.max_connections == 5
    assert door.guardrails.decide(Asking("chat"), REQUEST) is Speculation.SHADOW
    assert (door.reloads, door.failed_reloads) == (1, 0)
    assert "reloaded: 1 keys, 1 routes" in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[limits]\nmax_connection = 3\n", "[limits] max_connection"),
        ("[limits\n", "is no TOML"),
        (f"[limits]\nmax_connections = {'9' * 5000}\n", "is no TOML"),
        (f"[limits]\nidle_seconds = {'9' * 400}\n", "[limits] idle_seconds"),
        (None, "cannot be read"),
        ("", "keys: there are none any more"),
        (f'[keys.a]\nsha256 = ["{hash_key(ALICE)}"]\n[tls]\ncertificate="c"\nkey="k"\n', "tls: cannot be turned on"),
    ],
)
def test_a_bad_file_changes_nothing(
    text: str | None, problem: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = build_door(parse("--config", file))
    before = door.doorkeeper.config
    file.unlink()
    if text is not None:
        file.write_text(text)
    door.reload()
    assert door.doorkeeper.config == before
    assert name_of(door, ALICE) == "alice"
    assert (door.reloads, door.failed_reloads) == (0, 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert problem in line
    assert "everything stays as it was" in line


def test_a_certificate_is_renewed_by_a_reload(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    files = authority.issue("first")
    door = build_door(parse("--tls-cert", files.certificate, "--tls-key", files.key))
    tls = door.tls
    assert tls is not None
    assert door.scheme == "wss"
    first = tls()
    files.key.write_text("torn")
    door.reload()
    assert (door.reloads, door.failed_reloads, tls()) == (0, 1, first)
    authority.issue("first")
    door.reload()
    assert (door.reloads, door.failed_reloads) == (1, 1)
    assert tls() is not first


def test_refusals_are_told(file: Path) -> None:
    refused: list[str] = []
    door = build_door(parse("--config", file), refused=refused.append)
    assert name_of(door, "wrong") == ""
    assert refused == ["unauthorized"]
