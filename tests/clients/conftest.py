"""Members in processes of their own, plain and with TLS, for clients that are programs of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvorum.certificates import make_certificates
from tests.listener.process import member_process

FOLDER_VARIABLE = "KVORUM_CLIENTS"
TIMEOUT_S = 60.0
_OWN_TRUST = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a member serves, and the files that a client of it needs: CA, certificate, key."""

    port: int
    tls: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return "localhost" if self.tls else "127.0.0.1"


def installed(name: str) -> Path:
    """A file below the folder of clients, or skip the test."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        pytest.skip(f"{FOLDER_VARIABLE} names no folder of client libraries; 'make clients' makes one and uses it")
    found = Path(folder).absolute() / name
    if not found.exists():
        pytest.skip(f"{name} is not installed in {folder}")
    return found


def use(command: Sequence[str | Path], cwd: Path, stdin: str = "", **variables: str) -> str:
    """What a program prints; it must end well."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OWN_TRUST}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd, capture_output=True, text=True, timeout=TIMEOUT_S, input=stdin, env={**inherited, **variables},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr or done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with asyncio.Runner() as runner:
        member = member_process(tmp_path_factory.mktemp("plain"))
        running = runner.run(member.__aenter__())
        yield Endpoint(running.port)
        runner.run(member.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """It asks every client for a certificate."""
    folder = tmp_path_factory.mktemp("secured")
    certificates = make_certificates(folder / "tls")
    client = certificates.pair("client")
    with asyncio.Runner() as runner:
        member = member_process(folder, certificates=certificates)
        running = runner.run(member.__aenter__())
        yield Endpoint(running.port, tuple(map(str, (certificates.ca_file, client.cert_file, client.key_file))))
        runner.run(member.__aexit__(None, None, None))
