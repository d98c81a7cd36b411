"""What the options ask for is what is there."""

from __future__ import annotations

import argparse
import builtins
import socket
import urllib.request
from typing import Any

import pytest
from draftwire.cloud_verifier.operations.operations import Operations, build_operations
from draftwire.cloud_verifier.operations.options import add_log_options, add_operations_options
from draftwire.protocol.errors import MissingDependencyError, VerifierError

from .streams import INFO, commit, stream_of


def parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_log_options(parser)
    add_operations_options(parser)
    return parser.parse_args(arguments)


def build(*arguments: str) -> Operations:
    return build_operations(parse(*arguments), INFO)


@pytest.mark.parametrize(
    "arguments",
    [["--metrics-port", "70000"], ["--metrics-port", "x"], ["--log-format", "xml"]],
    ids=" ".join,
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*arguments)
    assert caught.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_metrics_are_on_the_service_unless_they_have_a_port() -> None:
    operations = build()
    assert [(route.method, route.path, route.public) for route in operations.routes] == [("GET", "/metrics", True)]
    operations.close()


def test_a_port_of_its_own_is_let_go_at_the_end() -> None:
    operations = build("--metrics-port", "0")
    port = operations.metrics.port
    assert operations.routes == []
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        assert b"draftwire_build_info" in reply.read()
    operations.close()
    operations.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port or 0), 30):
        pass


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(VerifierError, match=f"cannot serve metrics on 127.0.0.1:{port}: .*; choose another port"):
            build("--metrics-port", str(port))


def test_requests_are_logged_unless_they_are_not_to_be(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="draftwire.requests")
    for arguments, lines in (((), 2), (("--no-request-log",), 0)):
        caplog.clear()
        observer, stream = build(*arguments).observer, stream_of()
        observer.opened(stream, waited=0.0)
        observer.ended(stream, "stop")
        assert len(caplog.records) == lines


def test_traces_without_their_extra_are_refused_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **options: Any) -> Any:
        if name.endswith("tracing") or name.startswith("opentelemetry"):
            raise ModuleNotFoundError("No module named 'opentelemetry'", name="opentelemetry")
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    build().close()  # nobody else needs it
    with pytest.raises(MissingDependencyError, match=r"--otel needs opentelemetry; install draftwire\[otel\]"):
        build("--otel")


def test_traces_end_with_the_rest(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console")
    operations, stream = build("--otel", "--no-request-log"), stream_of()
    operations.observer.opened(stream, waited=0.0)
    commit(operations.observer, stream, 101.0)
    operations.observer.ended(stream, "stop")
    operations.close()
    assert '"name": "text_completion tiny"' in capsys.readouterr().out
