"""Each option of ``draftwire-verifier serve`` reaches what it is about. The parts themselves are stood in for."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
from draftwire.cloud_verifier import serving
from draftwire.cloud_verifier.cli import main
from draftwire.cloud_verifier.engine.engine import Engine
from draftwire.cloud_verifier.engine.scheduler import RunAhead, Scheduler
from draftwire.cloud_verifier.service.health import Health
from draftwire.cloud_verifier.service.server import VerifierServer
from draftwire.cloud_verifier.targets.table_target import TableTarget

MODEL = "some/model"


class Parts:
    """What ``serve`` has made, each with the options it was given."""

    def __init__(self) -> None:
        self.given: dict[str, dict[str, Any]] = {}

    def watched(self, kind: Callable[..., Any]) -> Callable[..., Any]:
        """The same, remembering what it was given by name."""

        def make(*args: Any, **options: Any) -> Any:
            self.given[kind.__name__] = options
            return kind(*args, **options)

        return make


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    made = Parts()

    def load(parsed: Any, **memory: Any) -> TableTarget:
        made.given["target"] = {**vars(parsed), **memory}
        return TableTarget(max_context=500)

    async def serve(self: VerifierServer, host: str, port: int, *, ready: Callable[[int], None], **rest: Any) -> None:
        del self, rest
        made.given["address"] = {"host": host, "port": port}
        ready(4711)

    for name in ("collect", "freeze"):  # what the program sets aside for good is not for this process to keep
        monkeypatch.setattr(gc, name, lambda: 0)
    monkeypatch.setattr(serving, "load_target", load)
    monkeypatch.setattr(VerifierServer, "serve", serve)
    for kind in (Engine, Scheduler, Health, VerifierServer):
        monkeypatch.setattr(serving, kind.__name__, made.watched(kind))
    return made


@pytest.mark.parametrize(
    ("arguments", "part", "name", "value"),
    [
        (["--run-ahead", "never"], "Scheduler", "run_ahead", RunAhead.NEVER),
        (["--crowd", "5"], "Scheduler", "crowd", 5),
        (["--step-tokens", "77"], "Scheduler", "step_tokens", 77),
        (["--max-waiting", "3"], "Engine", "most_waiting", 3),
        (["--wait-seconds", "2.5"], "Engine", "wait_seconds", 2.5),
        (["--prefix-cache", "0"], "Engine", "prefix_tokens", 0),
        (["--share-prefixes"], "Engine", "share_prefixes", True),
        ([], "Engine", "share_prefixes", False),
        (["--drain-seconds", "1.5"], "VerifierServer", "drain_seconds", 1.5),
        (["--stall-seconds", "4"], "Health", "stall_seconds", 4.0),
        (["--kv-memory", "1.5M"], "target", "kv_memory", 3 * 512 * 1024),
        ([], "target", "kv_share", 0.5),
        (["--dtype", "float16"], "target", "dtype", "float16"),
        (["--threads", "2"], "target", "threads", 2),
        (["--trust-remote-code"], "target", "trust_remote_code", True),
        ([], "target", "trust_remote_code", False),
        (["--port", "0"], "address", "port", 0),
        (["--host", "127.0.0.2"], "address", "host", "127.0.0.2"),
    ],
    ids=str,
)
def test_an_option_reaches_its_part(arguments: list[str], part: str, name: str, value: object, parts: Parts) -> None:
    assert main(["serve", MODEL, *arguments]) == 0
    assert parts.given[part][name] == value


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        (["--max-streams", "3"], "max_streams", 3),
        (["--max-context", "99"], "max_context", 99),
        ([], "max_context", 500),
    ],
    ids=str,
)
def test_what_clients_are_promised_is_what_the_engine_keeps(
    arguments: list[str], name: str, value: int, parts: Parts
) -> None:
    assert main(["serve", MODEL, *arguments]) == 0
    for part in ("Engine", "VerifierServer"):
        assert getattr(parts.given[part]["limits"], name) == value


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_is_printed_once_it_serves(
    host: str, shown: str, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", MODEL, "--host", host]) == 0
    assert capsys.readouterr().out == f"serving {TableTarget().info.name} at ws://{shown}:4711\n"
    assert parts.given["address"]["host"] == host
