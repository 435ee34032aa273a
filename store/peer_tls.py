"""TLS between members: both sides show their certificate and check the other's (etcd's --peer-* flags)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raft.transport import Listening, TcpTransport
from store.listener.accept import tls_server
from store.tls import ServerTls, TlsFiles, client_context

HANDSHAKE_TIMEOUT_S: Final = 5.0


def secure(transport: TcpTransport, files: TlsFiles) -> None:
    """Have a transport that is not started yet accept and dial with TLS. Raises TlsError."""
    tls = ServerTls(files, alpn=())

    async def serve(factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Listening:
        return await tls_server(factory, host, port, tls, HANDSHAKE_TIMEOUT_S)

    transport.serve = serve
    transport.client_ssl = client_context(files)


__all__ = ["secure"]
