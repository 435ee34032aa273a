"""Certificates for a local cluster: one CA, and one certificate each for servers, peers and clients.

They are for a laptop: the CA's key lies beside them, and they are valid for a year.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID: Final = datetime.timedelta(days=365)
_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)
HOSTS: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where the certificates of a cluster lie."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def pair(self, name: str) -> Pair:
        """``server``, ``peer`` or ``client``."""
        return Pair(self.directory / f"{name}.crt", self.directory / f"{name}.key")


class Authority:
    """A CA that signs with a key of its own."""

    def __init__(self, name: str = "kvorum-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
            decipher_only=False,
        )  # fmt: skip
        self.certificate = (
            self._builder(self._name, self._key.public_key(), VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now - _CLOCK_SKEW, now + valid - _CLOCK_SKEW))
            .not_valid_after(now + valid)
        )

    def issue(
        self, name: str, pair: Pair, *, hosts: Sequence[str] = HOSTS, valid: datetime.timedelta = VALID
    ) -> None:
        """Write a certificate for ``name``, good for both ends of a connection. A negative time is a past one."""
        key = ec.generate_private_key(ec.SECP256R1())
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        certificate = (
            self._builder(_name(name), key.public_key(), valid)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usages, critical=False)
            .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        _write(pair.cert_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        _write(pair.key_file, _pem(key), 0o600)

    def save(self, certificates: Certificates) -> None:
        pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        _write(certificates.ca_file, pem, 0o644)
        _write(certificates.directory / "ca.key", _pem(self._key), 0o600)


def make_certificates(directory: Path) -> Certificates:
    """A CA with a server, a peer and a client certificate in ``directory``; what is there already stays."""
    certificates = Certificates(directory)
    if certificates.ca_file.exists():
        return certificates
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = Authority()
    for name, subject in (("server", "kvorum-server"), ("peer", "kvorum-peer"), ("client", "root")):
        authority.issue(subject, certificates.pair(name))
    authority.save(certificates)
    return certificates


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Replace a file at once, readable for whom it should be from its first byte."""
    temporary = path.with_suffix(f"{path.suffix}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    temporary.replace(path)
