"""TLS of the service: certificate and key from files, read again on request without a restart."""

from __future__ import annotations

import ssl

from ...protocol.errors import InvalidParameterError
from .config import TlsFiles

__all__ = ["Certificate"]


class Certificate:
    """A certificate and its key, which may be renewed.

    Attributes:
        files: that they are from.
        context: for connections from now on; another one after each :meth:`reload`, as a context that has a
            certificate keeps it beside a new one of another kind of key.

    Raises:
        InvalidParameterError: a file is missing or unreadable, is no certificate or key, asks for a password, or the
            two do not belong together.
    """

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.context = _load(files, _context())

    def reload(self, files: TlsFiles | None = None) -> None:
        """Read the files again, or others; connections from now on get what is in them.

        Raises:
            InvalidParameterError: as above; the old certificate stays in use.
        """
        files = files or self.files
        self.context = _load(files, _context())
        self.files = files


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class _AsksForPassword(Exception):
    """OpenSSL would ask at the terminal, where nobody is."""


def _load(files: TlsFiles, context: ssl.SSLContext) -> ssl.SSLContext:
    for name, path in (("certificate", files.certificate), ("key", files.key)):
        try:
            path.read_bytes()
        except (OSError, ValueError) as error:  # the latter of a path that no system could have
            reason = getattr(error, "strerror", None) or error
            raise InvalidParameterError(f"TLS {name}", f"{path} cannot be read: {reason}") from None
    try:
        context.load_cert_chain(files.certificate, files.key, password=_ask)
    except _AsksForPassword:
        raise InvalidParameterError(
            "TLS key", f"{files.key} is encrypted; store it decrypted, readable by the service alone"
        ) from None
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidParameterError(*_fault(files, error)) from None
    return context


def _ask() -> str:
    raise _AsksForPassword


def _fault(files: TlsFiles, error: Exception) -> tuple[str, str]:
    reason = getattr(error, "reason", None) or ""
    if "MISMATCH" in reason:
        return "TLS key", f"{files.key} does not belong to the certificate {files.certificate}"
    if b"-----BEGIN CERTIFICATE-----" not in files.certificate.read_bytes():
        return "TLS certificate", f"{files.certificate} is no certificate in PEM"
    if b"PRIVATE KEY-----" not in files.key.read_bytes():
        return "TLS key", f"{files.key} is no private key in PEM"
    return "TLS certificate", f"{files.certificate} and {files.key} cannot be used ({reason or 'unreadable'})"
