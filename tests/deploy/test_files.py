"""Dockerfile, compose file and systemd unit fit the program and the repository; nothing here needs Docker."""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from draftwire.cloud_verifier.cli import main

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
UNIT = (DEPLOY / "draftwire-verifier.service").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
AFTER_DRAIN = 25
"""Seconds that may go by after the drain: the engine's stop, closing sockets, traces and log."""


class _Parsed(BaseException):
    """Raised in place of running a command that was parsed."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Arguments as the program itself understands them; SystemExit where it does not."""
    real = argparse.ArgumentParser.parse_args

    def stop(self: argparse.ArgumentParser, args: Sequence[str] | None = None) -> NoReturn:
        raise _Parsed(real(self, args))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)

    def run(arguments: Sequence[str]) -> argparse.Namespace:
        with pytest.raises(_Parsed) as parsed:
            main(arguments)
        return parsed.value.options

    return run


def instruction(name: str) -> list[str]:
    """What stands behind an instruction of the Dockerfile, each time it is there."""
    return re.findall(rf"^{name}\s+(.+)$", DOCKERFILE, re.MULTILINE)


def unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def entry_point() -> list[str]:
    (words,) = instruction("ENTRYPOINT")
    program, *arguments = json.loads(words)
    assert program == "draftwire-verifier"
    return arguments


# --- the image ----------------------------------------------------------------------------------------------------


def test_the_image_starts_as_the_program_understands(parse: Any) -> None:
    (command,) = instruction("CMD")
    options = parse([*entry_point(), *json.loads(command)])
    assert options.log_format == "json"
    ports = set(instruction("EXPOSE")[0].split())
    assert ports == {str(options.port), str(options.metrics_port)}
    assert f"127.0.0.1:{options.port}/healthz" in DOCKERFILE
    assert options.host == options.metrics_host == "0.0.0.0"


def test_the_image_runs_as_nobody_special_and_ends_by_the_signal_that_drains() -> None:
    assert instruction("USER") == ["10001"]
    assert instruction("STOPSIGNAL") == ["SIGTERM"]


def test_the_allocator_is_told_the_same_everywhere() -> None:
    """Compose starts the image, and sets nothing of its own."""
    setting = r"(?:^| )MALLOC_ARENA_MAX=2(?: |$)"
    assert re.search(setting, " ".join(instruction("ENV")))
    assert re.search(setting, " ".join(unit("Environment")))
    assert not any("MALLOC_ARENA_MAX" in str(each.get("environment")) for each in verifiers().values())
    assert "MALLOC_ARENA_MAX=2" in (ROOT / "docs" / "deployment.md").read_text()


def test_no_secret_gets_into_a_layer() -> None:
    """Arguments and environment of a build are kept with the image; pip's settings come as a secret."""
    assert instruction("ARG") == []
    assert not re.search(r"\b(KEY|TOKEN|PASSWORD|SECRET)\b|INDEX_URL", " ".join(instruction("ENV")))
    assert "--mount=type=secret,id=pip" in DOCKERFILE
    assert not (DEPLOY / "verifier.env").exists()


def let_in() -> set[str]:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert next(line for line in lines if line and not line.startswith("#")) == "**"
    return {line[1:] for line in lines if line.startswith("!")}


def test_the_build_sees_all_that_it_needs_and_nothing_else() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    folders = {name.split(".")[1] for name in packages if "." in name}
    (constraints,) = re.findall(r"-c (\S+)", DOCKERFILE)
    files = {"__init__.py", "pyproject.toml", constraints, project["project"]["readme"]}
    assert let_in() == folders | files | set(project["project"]["license-files"])
    assert all((ROOT / name).exists() for name in let_in())


def test_the_build_installs_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert {"cloud", "otel"} == set(extras.split(","))
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()


def test_no_address_but_those_of_the_services_is_named() -> None:
    named = {
        host
        for path in DEPLOY.rglob("*")
        if path.is_file()
        for host in re.findall(r"\w+://([\w.-]+)", path.read_text())
    }
    assert named == {"127.0.0.1", "prometheus", "draftwire_verifiers"}
    assert not [path for path in DEPLOY.rglob("*") if path.is_file() and "index-url" in path.read_text().lower()]


# --- compose ------------------------------------------------------------------------------------------------------


def verifiers() -> dict[str, dict[str, Any]]:
    return {name: each for name, each in COMPOSE["services"].items() if each["image"] == "draftwire-verifier"}


def with_defaults(text: str) -> str:
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def test_compose_starts_two_verifiers_as_the_program_understands(parse: Any) -> None:
    assert len(verifiers()) == 2
    for verifier in verifiers().values():
        options = parse([*entry_point(), *shlex.split(with_defaults(verifier["command"]))])
        grace = int(verifier["stop_grace_period"].removesuffix("s"))
        assert grace >= options.drain_seconds + AFTER_DRAIN
        assert "ports" not in verifier  # only the proxy is reachable
        assert verifier["read_only"] is True
        assert verifier["cap_drop"] == ["ALL"]
        build = (DEPLOY / verifier["build"]["context"]).resolve()
        assert build == ROOT
        assert (build / verifier["build"]["dockerfile"]).is_file()


def test_all_that_is_mounted_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", []):
            source = with_defaults(volume).split(":")[0]
            if source.startswith("./") and source != "./models":
                assert (DEPLOY / source).exists(), source
            elif not source.startswith("./"):
                assert source in COMPOSE["volumes"]


def test_ports_and_names_agree_between_the_files(parse: Any) -> None:
    options = parse([*entry_point(), *shlex.split(with_defaults(next(iter(verifiers().values()))["command"]))])
    proxy = (DEPLOY / "nginx" / "draftwire.conf").read_text()
    assert set(re.findall(r"server ([\w-]+):(\d+)", proxy)) == {(name, str(options.port)) for name in verifiers()}
    (listening,) = re.findall(r"listen (\d+);", proxy)
    assert COMPOSE["services"]["proxy"]["ports"] == [f"{listening}:{listening}"]
    scrape = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    (config,) = scrape["scrape_configs"]
    assert config["static_configs"] == [{"targets": [f"{name}:{options.metrics_port}" for name in verifiers()]}]
    for name in scrape["rule_files"]:
        assert (DEPLOY / "prometheus" / name).is_file()
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    assert set(re.findall(r'job="([^"]+)"', rules)) == {config["job_name"]}


def test_grafana_finds_its_source_and_its_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert COMPOSE["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "draftwire.yaml").read_text())["providers"]
    folder = provider["options"]["path"]
    assert any(volume.split(":")[1].startswith(f"{folder}/") for volume in COMPOSE["services"]["grafana"]["volumes"])


def test_only_the_proxy_listens_to_the_outside() -> None:
    for name, service in COMPOSE["services"].items():
        for port in service.get("ports", []):
            assert name == "proxy" or port.startswith("127.0.0.1:")


# --- systemd ------------------------------------------------------------------------------------------------------


def test_the_unit_starts_as_the_program_understands(parse: Any) -> None:
    (line,) = unit("ExecStart")
    program, *arguments = line.replace("${MODEL}", "model").replace("$OPTIONS", "--kv-memory 16G --threads 16").split()
    assert program.endswith("/draftwire-verifier")
    options = parse(arguments)
    (timeout,) = unit("TimeoutStopSec")
    assert int(timeout) >= options.drain_seconds + AFTER_DRAIN
    assert options.log_format == "json"
    assert unit("KillSignal") == ["SIGTERM"]


def test_the_unit_holds_no_secret_and_gives_little_away() -> None:
    assert "API_KEYS" not in "".join(unit("Environment"))
    assert unit("EnvironmentFile") == ["/etc/draftwire/verifier.env"]
    expected = {"DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": ""}
    assert {name: unit(name)[0] for name in expected} == expected


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / "draftwire-verifier.service"
    copy.write_text(UNIT.replace("/opt/draftwire/bin/draftwire-verifier", shutil.which("true") or "true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_patterns_of_what_is_left_out_come_last() -> None:
    """Docker heeds the last pattern that fits."""
    lines = [
        line for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[:1] not in ("", "#")
    ]
    allowed = max(number for number, line in enumerate(lines) if line.startswith("!"))
    assert any(fnmatch.fnmatch("deploy/verifier.env", line.removeprefix("**/")) for line in lines[allowed + 1 :])
