"""TLS between members: both sides show a certificate of the cluster's CA, or nothing is said."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvorum.certificates import Certificates, make_certificates
from raft.log import Identity
from raft.transport import TcpTransport, describe
from store.listener import TlsFiles, client_context
from store.peer_tls import secure
from tests.ports import free_base


def files(certificates: Certificates, *, pair: bool = True) -> TlsFiles:
    own = certificates.pair("peer")
    given = (str(own.cert_file), str(own.key_file)) if pair else ("", "")
    return TlsFiles(*given, str(certificates.ca_file), client_cert_auth=pair)


@contextlib.asynccontextmanager
async def member(directory: Path, certificates: Certificates) -> AsyncIterator[str]:
    """A secured peer port; its address."""
    transport = TcpTransport(Identity(1, 1), directory)
    transport.describe = lambda: b"a cluster"
    secure(transport, files(certificates))
    address = f"127.0.0.1:{free_base(1)}"
    handler: Any = None  # nothing but a description is asked for
    await transport.start([address], handler)
    try:
        yield address
    finally:
        await transport.stop()


async def test_members_with_certificates_of_one_ca(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "tls")
    async with member(tmp_path, certificates) as address:
        assert await describe(address, 5, client_context(files(certificates))) == b"a cluster"


async def test_a_peer_of_another_ca_or_without_certificate_or_without_tls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = make_certificates(tmp_path / "own"), make_certificates(tmp_path / "other")
    foreign = files(other)
    mixed = TlsFiles(foreign.cert_file, foreign.key_file, str(own.ca_file))
    contexts: list[ssl.SSLContext | None] = [
        client_context(mixed), client_context(files(own, pair=False)), client_context(foreign), None,
    ]  # fmt: skip
    async with member(tmp_path, own) as address:
        for context in contexts:
            caplog.clear()
            with caplog.at_level(logging.WARNING), pytest.raises((OSError, TimeoutError)):
                await describe(address, 1, context)
            async with asyncio.timeout(5):
                while not caplog.records:  # noqa: ASYNC110  # a log has no event
                    await asyncio.sleep(0.01)
            (record,) = caplog.records
            assert "TLS refused" in record.getMessage()
