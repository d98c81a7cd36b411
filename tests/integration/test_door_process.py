"""The door of a verifier that runs as a process of its own: signals, certificates, keys from the environment."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from draftwire.cloud_verifier.cli import main
from draftwire.cloud_verifier.service.keys import KEYS_VARIABLE, hash_key, new_key
from draftwire.edge_client import AsyncEdgeClient
from draftwire.edge_client.transport import Transport
from draftwire.edge_client.vocabulary_source import fetch_vocabulary
from draftwire.protocol.errors import AuthenticationError, ConnectionLostError, DraftwireError, VerifierRefusedError

from ..cloud_verifier.service.certificates import Authority
from ..grace import GRACE, wait_for
from .table_targets import endless_table, reference_tokens

ALICE, BOB = new_key(), new_key()


class Program:
    """``serve_door``, running."""

    def __init__(self, process: subprocess.Popen[str], scheme: str) -> None:
        assert process.stdout is not None
        port, self.keys_in_environment = process.stdout.readline().split()
        self.process = process
        self.url = f"{scheme}://127.0.0.1:{port}"
        self.said: list[str] = []

    def until(self, text: str) -> str:
        """Wait until it logs a line with this text."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            if text in line:
                return line
        raise AssertionError(f"it never said {text!r}: {self.said}")

    def hang_up(self) -> None:
        """SIGHUP."""
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> str:
        """End it in order; returns all that it logged."""
        self.process.send_signal(signal.SIGINT)
        _, rest = self.process.communicate(timeout=GRACE)
        assert self.process.returncode == 0
        return "".join(self.said) + rest


@contextmanager
def program(*arguments: str | Path, scheme: str = "ws", **environment: str) -> Iterator[Program]:
    """Serve until the block ends."""
    with subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("serve_door.py")), *map(str, arguments)],
        stdin=subprocess.DEVNULL,  # not a terminal, which would be closed with SIGHUP
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield Program(process, scheme)
        finally:
            process.kill()


async def generates(url: str, key: str | None = None) -> bool:
    """Whether a client with this key gets the right answer; False where its key is not accepted."""
    async with AsyncEdgeClient(url, api_key=key, reconnect_seconds=0) as client:
        try:
            result = await wait_for(client.generate([4, 2], max_tokens=5))
        except AuthenticationError:
            return False
    return result.token_ids == reference_tokens(endless_table(), [4, 2], 5)


def keys_file(path: Path, **keys: str) -> Path:
    """A configuration file with these keys."""
    path.write_text("".join(f'[keys.{name}]\nsha256 = ["{hash_key(key)}"]\n' for name, key in keys.items()))
    return path


async def test_keys_are_changed_by_a_signal_without_a_restart(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "verifier.toml", alice=ALICE)
    with program("--config", file) as running:
        assert (await generates(running.url, ALICE), await generates(running.url, BOB)) == (True, False)
        held = await Transport.connect(running.url, headers={"Authorization": f"Bearer {ALICE}"})
        file.write_text("[limit]\n")
        running.hang_up()
        assert "verifier.toml limit" in running.until("everything stays as it was")
        assert await generates(running.url, ALICE)
        keys_file(file, bob=BOB)
        running.hang_up()
        running.until("reloaded: 1 keys")
        assert (await generates(running.url, ALICE), await generates(running.url, BOB)) == (False, True)
        assert isinstance(await wait_for(held.receive()), bytes)  # ERROR
        with pytest.raises(ConnectionLostError, match="1008"):
            await wait_for(held.receive())
        said = running.stop()
        assert ALICE not in said
        assert BOB not in said


async def test_keys_from_the_environment_leave_it(tmp_path: Path) -> None:
    file = keys_file(tmp_path / "verifier.toml", bob=BOB)
    with program("--config", file, **{KEYS_VARIABLE: f"alice={ALICE}"}) as running:
        assert running.keys_in_environment == "False"
        assert await generates(running.url, ALICE)
        assert await generates(running.url, BOB)
        assert not await generates(running.url)
        assert ALICE not in running.stop()


async def test_a_hangup_without_anything_to_read_again_changes_nothing() -> None:
    with program() as running:
        running.hang_up()
        running.until("nothing to read again")
        assert await generates(running.url)
        running.stop()


# --- TLS ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def serial_of(url: str, authority: Authority) -> str:
    """Serial number of the certificate that is served now."""
    context = ssl.create_default_context(cafile=str(authority.certificate))
    host, port = url.split("//")[1].split(":")
    with (
        socket.create_connection((host, int(port)), GRACE) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


async def test_clients_verify_by_default_and_know_authorities_by_the_usual_variable(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = authority.issue("site")
    stranger = Authority(tmp_path / "stranger")
    with program("--tls-cert", files.certificate, "--tls-key", files.key, scheme="wss") as running:
        for known in (None, stranger.certificate):
            if known is not None:
                monkeypatch.setenv("SSL_CERT_FILE", str(known))
            with pytest.raises(
                VerifierRefusedError, match=r"CERTIFICATE_VERIFY_FAILED.*check its certificate"
            ) as caught:
                await Transport.connect(running.url)
            assert "\n" not in str(caught.value)
            with pytest.raises(DraftwireError, match="CERTIFICATE_VERIFY_FAILED"):
                fetch_vocabulary(running.url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
        assert await generates(running.url)
        assert fetch_vocabulary(running.url).tokenizer.vocabulary_size == 24
        with pytest.raises(DraftwireError) as caught_plain:
            await Transport.connect(running.url.replace("wss", "ws"))
        assert "\n" not in str(caught_plain.value)
        assert "Traceback" not in running.stop()


async def test_a_certificate_of_another_name_is_refused(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    files = authority.issue("elsewhere", host="DNS:elsewhere.example")
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with (
        program("--tls-cert", files.certificate, "--tls-key", files.key, scheme="wss") as running,
        pytest.raises(VerifierRefusedError, match="CERTIFICATE_VERIFY_FAILED"),
    ):
        await Transport.connect(running.url)


async def test_a_certificate_is_renewed_by_a_signal_under_open_connections(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    files = authority.issue("renewed")
    with program("--tls-cert", files.certificate, "--tls-key", files.key, scheme="wss") as running:
        held = await Transport.connect(running.url)
        before = serial_of(running.url, authority)
        authority.issue("renewed")
        assert serial_of(running.url, authority) == before
        running.hang_up()
        running.until("reloaded")
        assert serial_of(running.url, authority) != before
        files.certificate.write_text("torn")
        running.hang_up()
        running.until("everything stays as it was")
        assert await generates(running.url)
        await held.ping()
        await held.close()


async def test_old_tls_is_refused(authority: Authority) -> None:
    files = authority.issue("modern")
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with program("--tls-cert", files.certificate, "--tls-key", files.key, scheme="wss") as running:
        host, port = running.url.split("//")[1].split(":")
        with socket.create_connection((host, int(port)), GRACE) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname=host)


# --- the command line ---------------------------------------------------------------------------------------------


def test_key_and_check_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["key", "alice"]) == 0
    printed = capsys.readouterr().out
    file = tmp_path / "verifier.toml"
    file.write_text(printed[printed.index("[keys") :])
    assert main(["check-config", str(file)]) == 0
    assert "1 keys of 1 names" in capsys.readouterr().out
    file.write_text("[limits]\nmax_conections = 1\n")
    assert main(["check-config", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"draftwire-verifier: error: {file} [limits] max_conections: is not a field that is known here"
