"""Accepting with TLS so that a failed handshake is known: the servers of asyncio keep it to themselves.

The context is asked for at each handshake, so renewed certificates need no restart.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from store.tls import ServerTls

log = logging.getLogger(__name__)

BACKLOG: Final = 1024
_PAUSE_S: Final = 1.0
_OUT_OF_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class TlsAcceptor:
    """Listening sockets whose connections reach ``factory``'s protocols after their handshake."""

    def __init__(
        self,
        sockets: list[socket.socket],
        factory: Callable[[], asyncio.Protocol],
        tls: ServerTls,
        handshake_timeout_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.sockets = sockets
        self._factory = factory
        self._tls = tls
        self._timeout_s = handshake_timeout_s
        self._shaking: set[asyncio.Task[None]] = set()
        self._closed = False
        for listening in sockets:
            listening.setblocking(False)
            listening.listen(BACKLOG)
            self._watch(listening)

    def _watch(self, listening: socket.socket) -> None:
        if not self._closed:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                log.error("connections wait for %g s: %s", _PAUSE_S, error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_S, self._watch, listening)
                return
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._shake_hands(connection, _spell(address)))
            self._shaking.add(task)
            task.add_done_callback(self._shaking.discard)

    async def _shake_hands(self, connection: socket.socket, who: str) -> None:
        try:
            await self._loop.connect_accepted_socket(
                self._factory, connection, ssl=self._tls.context(), ssl_handshake_timeout=self._timeout_s
            )
        except (OSError, ssl.SSLError) as error:
            log.warning("%s: TLS refused, %s", who, describe_tls_error(error))
            connection.close()

    def close(self) -> None:
        """Accept no more, and drop the connections that are not established."""
        if self._closed:
            return
        self._closed = True
        for listening in self.sockets:
            self._loop.remove_reader(listening.fileno())
            listening.close()
        for task in list(self._shaking):
            task.cancel()

    async def wait_closed(self) -> None:
        """Return when the handshakes that ``close`` broke off have ended."""
        if self._shaking:
            await asyncio.wait(self._shaking)


async def tls_server(
    factory: Callable[[], asyncio.Protocol], host: str, port: int, tls: ServerTls, handshake_timeout_s: float
) -> TlsAcceptor:
    """Listen on a TCP address, as ``loop.create_server`` does. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
        return TlsAcceptor(sockets, factory, tls, handshake_timeout_s)
    except OSError:
        for listening in sockets:
            listening.close()
        raise


def tls_unix_server(
    factory: Callable[[], asyncio.Protocol], path: str, tls: ServerTls, handshake_timeout_s: float
) -> TlsAcceptor:
    """Listen on a unix socket. Raises OSError."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        return TlsAcceptor([listening], factory, tls, handshake_timeout_s)
    except OSError:
        listening.close()
        raise


def _spell(address: object) -> str:
    if not isinstance(address, tuple):
        return "unix:"
    host, port = address[0], address[1]
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def describe_tls_error(error: OSError) -> str:
    """One line on why a handshake failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"client certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reasons = {
            "HTTP_REQUEST": "plain HTTP on a TLS port",
            "WRONG_VERSION_NUMBER": "no TLS was spoken",
            "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no client certificate",
        }
        reason = error.reason or str(error)
        return reasons.get(reason, reason.lower().replace("_", " "))
    if isinstance(error, ConnectionAbortedError):
        return "the handshake took too long"
    if isinstance(error, ConnectionError):
        return "the client broke the handshake off"
    return str(error) or type(error).__name__
