"""TLS on the client port: both protocols by ALPN, and everything that must be refused."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from kvorum.certificates import Authority, Certificates, make_certificates
from store.listener import ServerTls, TlsError, TlsFiles, client_context
from tests.listener.member import loopback

KEY_RANGE = "/etcdserverpb.KV/Range"


@dataclass
class Files:
    certificates: Certificates

    def server(self, *, client_auth: bool = False) -> TlsFiles:
        pair = self.certificates.pair("server")
        return TlsFiles(
            str(pair.cert_file),
            str(pair.key_file),
            str(self.certificates.ca_file) if client_auth else "",
            client_auth,
        )

    def client(self, name: str = "client", ca: Path | None = None) -> ssl.SSLContext:
        pair = self.certificates.pair(name)
        given = (str(pair.cert_file), str(pair.key_file)) if name else ("", "")
        return client_context(TlsFiles(*given, str(ca or self.certificates.ca_file)))

    def channel(self, port: int, *, with_client: bool = True) -> Any:
        pair = self.certificates.pair("client")
        own = (pair.key_file.read_bytes(), pair.cert_file.read_bytes()) if with_client else ()
        credentials = grpc.ssl_channel_credentials(self.certificates.ca_file.read_bytes(), *own)
        return grpc.aio.secure_channel(f"localhost:{port}", credentials)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(make_certificates(tmp_path_factory.mktemp("tls")))


async def get(port: int, context: ssl.SSLContext, path: str = "/health") -> int:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://localhost:{port}{path}", ssl=context) as response,
    ):
        await response.read()
        return response.status


async def test_grpc_and_http_share_the_port(files: Files) -> None:
    async with (
        loopback(ServerTls(files.server())) as member,
        files.channel(member.port, with_client=False) as client,
    ):
        assert await client.unary_unary(KEY_RANGE)(b"\x0a\x01a", timeout=5)
        assert await get(member.port, files.client("")) == 200


async def curl(*arguments: str) -> bytes:
    """What curl prints; in a thread, because a fork of this process would wait for gRPC's threads."""
    command = ["curl", "-m", "10", *arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    return done.stdout


async def test_http2_without_grpc_is_http_too(files: Files) -> None:
    """Clients that negotiate h2 ask for /health and /metrics over it."""
    if b"HTTP2" not in await curl("--version"):
        pytest.skip("this curl speaks no HTTP/2")
    async with loopback(ServerTls(files.server())) as member:
        output = await curl(
            "-sS", "--http2", "--cacert", str(files.certificates.ca_file), "-w", " %{http_version}",
            f"https://localhost:{member.port}/health",
        )  # fmt: skip
        assert output == b'{"health":"true","reason":""}\n 2'


async def test_a_client_certificate_is_required_and_names_the_client(files: Files) -> None:
    async with loopback(ServerTls(files.server(client_auth=True))) as member, files.channel(member.port) as client:
        assert await client.unary_unary(KEY_RANGE)(b"\x0a\x01a", timeout=5)
        assert await get(member.port, files.client()) == 200


async def served(port: int, context: ssl.SSLContext) -> bytes:
    """What one connection, never repeated, is answered."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
    except OSError:
        return b""
    try:
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return await asyncio.wait_for(reader.read(), 5)
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def refused(port: int, context: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> str:
    """The one warning that a refused connection leaves."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert await served(port, context) == b""
    async with asyncio.timeout(5):
        while not caplog.records:  # noqa: ASYNC110  # a log has no event
            await asyncio.sleep(0.01)
    assert len(caplog.records) == 1
    return caplog.records[0].getMessage()


async def test_no_client_certificate(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with loopback(ServerTls(files.server(client_auth=True))) as member:
        assert "TLS refused, no client certificate" in await refused(member.port, files.client(""), caplog)
        assert await get(member.port, files.client()) == 200


async def test_an_expired_client_certificate(
    files: Files, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    authority, own = Authority(), Certificates(tmp_path)
    authority.save(own)
    authority.issue("server", own.pair("server"))
    authority.issue("late", own.pair("client"), valid=datetime.timedelta(days=-1))
    theirs = Files(own)
    async with loopback(ServerTls(theirs.server(client_auth=True))) as member:
        assert "expired" in await refused(member.port, theirs.client(), caplog)


async def test_a_client_certificate_of_another_ca(
    files: Files, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    other = Files(make_certificates(tmp_path))
    async with loopback(ServerTls(files.server(client_auth=True))) as member:
        context = other.client(ca=files.certificates.ca_file)
        assert "client certificate: " in await refused(member.port, context, caplog)


async def test_a_client_that_does_not_trust_the_server(
    files: Files, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    other = Files(make_certificates(tmp_path))
    async with loopback(ServerTls(files.server())) as member:
        assert "TLS refused" in await refused(member.port, other.client(""), caplog)


async def test_plain_http_to_a_tls_port(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with loopback(ServerTls(files.server())) as member:
        reader, writer = await asyncio.open_connection("127.0.0.1", member.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        assert b"health" not in answer
        writer.close()
        (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert "TLS refused, plain HTTP on a TLS port" in record.getMessage()


async def test_old_tls_is_refused(files: Files) -> None:
    context = files.client("")
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with loopback(ServerTls(files.server())) as member:
        assert await served(member.port, context) == b""
        assert await served(member.port, files.client("")) != b""


async def test_a_silent_connection_to_a_tls_port_does_not_stop_others(files: Files) -> None:
    async with loopback(ServerTls(files.server())) as member:
        silent = [await asyncio.open_connection("127.0.0.1", member.port) for _ in range(20)]
        assert await get(member.port, files.client("")) == 200
        for _, writer in silent:
            writer.close()


async def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    old, own = Authority("old"), Certificates(tmp_path)
    old.save(own)
    old.issue("server", own.pair("server"))
    files = Files(own)
    before = files.client("")
    async with loopback(ServerTls(files.server())) as member:
        assert await get(member.port, before) == 200
        new = Authority("new")
        new.save(own)
        new.issue("server", own.pair("server"))
        assert await get(member.port, files.client("")) == 200
        assert await served(member.port, before) == b""


async def test_a_damaged_renewal_keeps_the_old_certificate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = Files(make_certificates(tmp_path))
    async with loopback(ServerTls(files.server())) as member:
        files.certificates.pair("server").cert_file.write_text("no certificate")
        assert await get(member.port, files.client("")) == 200
        assert "the changed certificate is not used" in caplog.text


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"missing\.crt"):
        ServerTls(TlsFiles(str(tmp_path / "missing.crt"), str(tmp_path / "missing.key")))
