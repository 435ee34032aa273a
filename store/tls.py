"""TLS settings of a port or a client, from files; a port reads them again when they change."""

from __future__ import annotations

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

ALPN: Final = ("h2", "http/1.1")


class TlsError(Exception):
    """Files that cannot be used; the message names them."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: a certificate with its key, and the CA that the other side is held to."""

    cert_file: str = ""
    key_file: str = ""
    trusted_ca_file: str = ""
    client_cert_auth: bool = False
    """Require a client certificate of that CA."""

    @property
    def given(self) -> bool:
        return bool(self.cert_file or self.key_file)

    def stamp(self) -> tuple[tuple[int, int], ...]:
        """Changes when a file does."""
        return tuple(_stamp(path) for path in (self.cert_file, self.key_file, self.trusted_ca_file) if path)


NO_TLS: Final = TlsFiles()


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return (0, 0)
    return (status.st_mtime_ns, status.st_ino)


class ServerTls:
    """Makes the context of each handshake."""

    def __init__(self, files: TlsFiles, alpn: tuple[str, ...] = ALPN) -> None:
        """Raises TlsError for files that cannot be used."""
        self._files = files
        self._alpn = alpn
        self._stamp = files.stamp()
        self._context = server_context(files, alpn)

    def context(self) -> ssl.SSLContext:
        """The context of now; while changed files cannot be used, the one of before."""
        stamp = self._files.stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = server_context(self._files, self._alpn)
                log.info("certificate read again: %s", self._files.cert_file)
            except TlsError as error:
                log.error("the changed certificate is not used: %s", error)
        return self._context


def server_context(files: TlsFiles, alpn: tuple[str, ...] = ALPN) -> ssl.SSLContext:
    """A context for accepting: TLS 1.2 or newer.

    Raises:
        TlsError: a file is missing, unreadable, or does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, files)
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if files.client_cert_auth or files.trusted_ca_file:
        if not files.trusted_ca_file:
            raise TlsError("client certificates are to be checked, but no trusted CA file is given")
        _trust(context, files.trusted_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED if files.client_cert_auth else ssl.CERT_OPTIONAL
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A context for dialling: checks the server against the CA, and shows the own certificate.

    Raises:
        TlsError: a file is missing, unreadable, or does not fit.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.trusted_ca_file:
        _trust(context, files.trusted_ca_file)
    else:
        context.load_default_certs()
    if files.given:
        _load(context, files)
    return context


def _load(context: ssl.SSLContext, files: TlsFiles) -> None:
    for path in (files.cert_file, files.key_file):
        if not path or not Path(path).is_file():
            raise TlsError(f"certificate and key are both needed, and {path or 'one'} is not there")
    try:
        context.load_cert_chain(files.cert_file, files.key_file, password=_no_password)
    except (OSError, ValueError) as error:
        raise TlsError(f"{files.cert_file} with {files.key_file}: {error}") from None


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsError(f"{path}: {error}") from None
