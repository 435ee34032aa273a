"""One member in a process of its own, without a cluster around it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvorum.certificates import Certificates
from kvorum.layout import Process
from kvorum.processes import Child, stop_all
from tests.ports import free_base


@dataclass(frozen=True, slots=True)
class Running:
    url: str
    port: int
    process: Process
    log_file: Path


@contextlib.asynccontextmanager
async def member_process(
    folder: Path, *flags: str, certificates: Certificates | None = None
) -> AsyncIterator[Running]:
    """A member that serves; with ``certificates`` over TLS, and asking clients for one of theirs."""
    port = free_base(2)
    scheme = "https" if certificates else "http"
    client, peer = f"{scheme}://127.0.0.1:{port}", f"http://127.0.0.1:{port + 1}"
    command = [
        sys.executable, "-m", "kvorum", "member", "--name", "m1", "--data-dir", str(folder / "m1"),
        "--listen-client-urls", client, "--advertise-client-urls", client,
        "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"m1={peer}",
        *_tls_flags(certificates), *flags,
    ]  # fmt: skip
    log_file = folder / "m1.log"
    child = Child("m1", command, log_file)
    try:
        async with asyncio.timeout(30):
            await child.ready()
        yield Running(client, port, child.process, log_file)
    finally:
        await stop_all([child.process])
        child.reap()


def _tls_flags(certificates: Certificates | None) -> Sequence[str]:
    if certificates is None:
        return ()
    server = certificates.pair("server")
    return (
        "--cert-file", str(server.cert_file), "--key-file", str(server.key_file),
        "--trusted-ca-file", str(certificates.ca_file), "--client-cert-auth",
    )  # fmt: skip
