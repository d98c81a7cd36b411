"""``key`` and ``check-config``, as an operator types them."""

from __future__ import annotations

import argparse
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from draftwire.cloud_verifier.service.config_file import read_config
from draftwire.cloud_verifier.service.door_commands import add_door_commands
from draftwire.cloud_verifier.service.keys import hash_key
from draftwire.protocol.errors import InvalidParameterError

from .certificates import Authority


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that ends well; returns what it printed."""

    def run_command(*arguments: str | Path) -> str:
        parser = argparse.ArgumentParser()
        add_door_commands(parser.add_subparsers(required=True))
        parsed = parser.parse_args([str(each) for each in arguments])
        assert parsed.run(parsed) == 0
        return capsys.readouterr().out

    return run_command


@pytest.mark.parametrize("name", ["alice", "team.b"])
def test_what_key_prints_can_be_put_into_the_file(name: str, run: Callable[..., str], tmp_path: Path) -> None:
    printed = run("key", name)
    (key,) = re.findall(r"dw_\S+", printed)
    file = tmp_path / "verifier.toml"
    file.write_text(printed[printed.index("[keys") :])
    assert tomllib.loads(file.read_text()) == {"keys": {name: {"sha256": [hash_key(key)]}}}
    found = read_config(file).keyring().find(key)
    assert found is not None
    assert found.name == name
    assert key not in run("key", name)


def test_a_name_that_no_log_should_hold(run: Callable[..., str]) -> None:
    with pytest.raises(InvalidParameterError, match="NAME"):
        run("key", "a b")


def test_check_config(run: Callable[..., str], tmp_path: Path) -> None:
    file = tmp_path / "verifier.toml"
    file.write_text("")
    assert "no keys, so everybody is let in" in run("check-config", file)
    files = Authority(tmp_path / "authority").issue("site")
    text = f'[keys.a]\nsha256 = ["{hash_key("1")}", "{hash_key("2")}"]\n[routes.chat]\n'
    tls = f'[tls]\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
    file.write_text(text + tls)
    assert run("check-config", file).endswith("is fine: 2 keys of 1 names; 1 routes; TLS\n")
    files.key.unlink()
    with pytest.raises(InvalidParameterError, match="TLS key"):
        run("check-config", file)
    file.write_text(text + f'[keys.b]\nsha256 = ["{hash_key("2")}"]\n')
    with pytest.raises(InvalidParameterError, match="a key of a's"):
        run("check-config", file)
