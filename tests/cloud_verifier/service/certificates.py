"""Certificates for tests, made by the openssl program: an authority of one's own, and what it vouches for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from draftwire.cloud_verifier.service.config import TlsFiles

__all__ = ["Authority"]


class Authority:
    """A certificate authority that nobody knows but those who are given ``certificate``.

    Args:
        folder: of its own, for the files.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl program")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca-key.pem"
        name = f"/CN=Test authority {folder.name}"
        self._openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.certificate, "-subj", name)

    def issue(self, name: str, *, host: str = "IP:127.0.0.1", rsa: bool = False) -> TlsFiles:
        """A certificate for ``host`` and its key, in files called ``name``."""
        files = TlsFiles(certificate=self._folder / f"{name}.pem", key=self._folder / f"{name}-key.pem")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={host}\n")
        kind = _NEW_RSA_KEY if rsa else _NEW_KEY
        self._openssl("req", *kind, "-keyout", files.key, "-out", request, "-subj", f"/CN={name}")
        signing = ("-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2")
        self._openssl("x509", "-req", "-in", request, *signing, "-extfile", extensions, "-out", files.certificate)
        return files

    def encrypted(self, key: Path) -> Path:
        """The same key, behind a password."""
        path = key.with_name(f"{key.stem}-encrypted.pem")
        self._openssl("ec", "-in", key, "-aes256", "-passout", "pass:word", "-out", path)
        return path

    def _openssl(self, *arguments: str | Path) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256")
_NEW_RSA_KEY = ("-newkey", "rsa:2048", "-nodes", "-sha256")
