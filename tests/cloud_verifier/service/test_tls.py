"""Certificates: loaded, renewed, and refused in one line that names the file."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from draftwire.cloud_verifier.service.config import TlsFiles
from draftwire.cloud_verifier.service.tls import Certificate
from draftwire.protocol.errors import InvalidParameterError

from .certificates import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.issue("first")


def served_name(context: ssl.SSLContext, authority: Authority) -> str:
    """Shake hands in memory; returns the name in the certificate that the client saw and verified."""
    client_context = ssl.create_default_context(cafile=str(authority.certificate))
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(8):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = client.getpeercert()
    assert certificate is not None
    assert client.version() in ("TLSv1.2", "TLSv1.3")
    return dict(pair for (pair,) in certificate["subject"])["commonName"]  # type: ignore[misc]


def test_it_serves_what_it_was_given_and_nothing_old(files: TlsFiles, authority: Authority) -> None:
    certificate = Certificate(files)
    assert certificate.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert served_name(certificate.context, authority) == "first"


@pytest.mark.parametrize("rsa", [False, True])
def test_a_renewed_certificate_replaces_the_old_one(rsa: bool, files: TlsFiles, authority: Authority) -> None:
    """A context that is given another kind of key would have both, and choose itself."""
    certificate = Certificate(files)
    certificate.reload(authority.issue("second", rsa=rsa))
    assert served_name(certificate.context, authority) == "second"
    certificate.reload()
    assert served_name(certificate.context, authority) == "second"


def test_a_renewal_that_fails_leaves_the_old_one(files: TlsFiles, authority: Authority, tmp_path: Path) -> None:
    certificate = Certificate(files)
    for wrong in (
        TlsFiles(certificate=tmp_path / "none.pem", key=files.key),
        TlsFiles(certificate=authority.issue("other").certificate, key=files.key),
    ):
        with pytest.raises(InvalidParameterError):
            certificate.reload(wrong)
        assert served_name(certificate.context, authority) == "first"
        assert certificate.files == files


def test_faults_name_the_file(files: TlsFiles, authority: Authority, tmp_path: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("no pem at all")
    hollow = tmp_path / "hollow.pem"
    hollow.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    other, encrypted = authority.issue("mismatch"), authority.encrypted(files.key)
    cases = {
        (tmp_path / "none.pem", files.key): "none.pem cannot be read: No such file",
        (files.certificate, tmp_path / "none.key"): "none.key cannot be read",
        (tmp_path, files.key): "cannot be read: Is a directory",
        (Path("a\0b"), files.key): "cannot be read: embedded null",
        (files.certificate, other.key): f"{other.key} does not belong to the certificate",
        (files.certificate, encrypted): f"{encrypted} is encrypted",
        (text, files.key): f"{text} is no certificate",
        (files.key, files.certificate): f"{files.key} is no certificate",
        (files.certificate, text): f"{text} is no private key",
        (hollow, files.key): f"{hollow} and",
    }
    for (certificate, key), problem in cases.items():
        with pytest.raises(InvalidParameterError) as caught:
            Certificate(TlsFiles(certificate=certificate, key=key))
        assert problem in str(caught.value)
        assert "\n" not in str(caught.value)
