"""A server of one kind with the echo service, and clients of it: what the conformance suites run over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from kvorum.certificates import Certificates
from store.listener import ServerTls, TlsFiles
from tests.listener.echo import CHANNEL_OPTIONS, SERVICE, Echo, ours, reference

KINDS = ("listener", "listener-tls", "grpc.aio")


@dataclass
class Bench:
    """``client`` is an asyncio channel; more of them, and blocking ones, by the methods."""

    echo: Echo
    port: int
    name: str
    ca: bytes
    client: Any = None

    def connect(self, **options: Any) -> Any:
        if self.ca:
            credentials = grpc.ssl_channel_credentials(self.ca)
            return grpc.aio.secure_channel(
                f"localhost:{self.port}", credentials, options=CHANNEL_OPTIONS, **options
            )
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=CHANNEL_OPTIONS, **options)

    def connect_blocking(self) -> Any:
        if self.ca:
            credentials = grpc.ssl_channel_credentials(self.ca)
            return grpc.secure_channel(f"localhost:{self.port}", credentials, options=CHANNEL_OPTIONS)
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=CHANNEL_OPTIONS)

    def unary(self, method: str = "Unary") -> Any:
        return self.client.unary_unary(f"/{SERVICE}/{method}")

    def bidi(self, method: str = "Bidi") -> Any:
        return self.client.stream_stream(f"/{SERVICE}/{method}")

    def server_stream(self, method: str = "ServerStream") -> Any:
        return self.client.unary_stream(f"/{SERVICE}/{method}")

    def client_stream(self) -> Any:
        return self.client.stream_unary(f"/{SERVICE}/ClientStream")


@contextlib.asynccontextmanager
async def serving(kind: str, certificates: Certificates) -> AsyncIterator[Bench]:
    """A server of one of KINDS."""
    echo = Echo()
    if kind == "grpc.aio":
        async with reference(echo) as port:
            yield Bench(echo, port, kind, b"")
        return
    tls, ca = None, b""
    if kind == "listener-tls":
        pair = certificates.pair("server")
        tls = ServerTls(TlsFiles(str(pair.cert_file), str(pair.key_file)))
        ca = certificates.ca_file.read_bytes()
    async with ours(echo, tls=tls) as (_, port):
        yield Bench(echo, port, kind, ca)
