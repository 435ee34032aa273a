"""The listener: registrations as grpc.aio.server takes them, ports, and a drain that ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from store.listener.accept import BACKLOG, TlsAcceptor, tls_server, tls_unix_server
from store.listener.call import Call
from store.listener.http import HttpApplication, not_found
from store.listener.http1 import Http1
from store.listener.http2 import Http2Connection
from store.listener.limits import Limits
from store.listener.links import Connection
from store.listener.metadata import Headers, MalformedHeader, decode_metadata, encode_message
from store.listener.port import Accepted
from store.tls import ServerTls

log = logging.getLogger(__name__)

CANCEL_WAIT_S: Final = 0.5
"""How long cancelled calls may take to end, and then closed connections to be gone."""
GOODBYE_WAIT_S: Final = 0.05
"""How long a peer is waited for that has been sent everything: with TLS it should say goodbye as well."""


class _CallDetails(NamedTuple):
    method: str
    invocation_metadata: Any


class Server:
    """gRPC and plain HTTP on shared ports. Register, ``listen``, and in the end ``stop``.

    Servicers are those of grpc.aio: coroutine functions, or asynchronous generators for streams of answers.
    """

    def __init__(self, limits: Limits | None = None, http: HttpApplication = not_found) -> None:
        self.limits = limits or Limits()
        self.http = http
        self.http1 = Http1(self)
        self.http2_configuration = self.limits.http2_configuration()
        self.loop = asyncio.get_running_loop()
        self.received_bytes = 0
        self.sent_bytes = 0
        """Of HTTP/2, all connections together."""
        self._methods: dict[bytes, Any] = {}
        self._services: set[str] = set()
        self._generic: list[Any] = []
        self._connections: set[Connection] = set()
        self._servers: list[asyncio.AbstractServer | TlsAcceptor] = []
        self._paths: list[str] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    # -- registrations ------------------------------------------------------------------------------------

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """What grpcio-generated code calls with the methods of a servicer."""
        self._services.add(service)
        for name, handler in handlers.items():
            self._methods[f"/{service}/{name}".encode()] = handler

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        """Handlers that are asked for each method they may know."""
        self._generic.extend(handlers)

    def find(self, path: bytes, headers: Headers) -> tuple[Any, bytes]:
        """The handler of a method, or None and the text that says what is unknown, as grpc-go words it."""
        handler = self._methods.get(path)
        if handler is not None:
            return handler, b""
        text = path.decode("latin-1")
        for generic in self._generic:
            try:
                metadata = decode_metadata(headers)
            except MalformedHeader as error:
                return None, encode_message(str(error))
            handler = generic.service(_CallDetails(text, metadata))
            if handler is not None:
                return handler, b""
        return None, encode_message(self._unknown(text))

    def _unknown(self, path: str) -> str:
        service, slash, method = path[1:].rpartition("/")
        if not path.startswith("/") or not slash:
            return f'malformed method name: "{path}"'
        known = self._services | {getattr(generic, "service_name", str)() for generic in self._generic}
        if service in known:
            return f"unknown method {method} for service {service}"
        return f"unknown service {service}"

    # -- ports --------------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, tls: ServerTls | None = None) -> int:
        """Serve on a TCP port, 0 for any; the port. Raises OSError when it cannot be had."""
        server: asyncio.Server | TlsAcceptor
        if tls is None:
            server = await self.loop.create_server(self._accepted, host, port, backlog=BACKLOG)
        else:
            server = await tls_server(self._accepted, host, port, tls, self.limits.handshake_timeout_s)
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def _accepted(self) -> Accepted:
        return Accepted(self, self.http1)

    async def listen_unix(self, path: str, tls: ServerTls | None = None) -> None:
        """Serve on a unix socket; one that was left behind is replaced. Raises OSError when it cannot be had."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        if tls is None:
            self._servers.append(await self.loop.create_unix_server(self._accepted, path, backlog=BACKLOG))
        else:
            self._servers.append(tls_unix_server(self._accepted, path, tls, self.limits.handshake_timeout_s))
        self._paths.append(path)

    async def stop(self, grace_s: float | None = None, reason: str = "server stopped") -> None:
        """Take no more connections, let calls finish for ``grace_s`` seconds, end the rest with UNAVAILABLE.

        ``reason`` is what they are told. Without a status grpc-go reports UNKNOWN, which etcd's clients take for
        final."""
        self._stopping = True
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.drain()
        if grace_s and self._connections:
            await self._wait_empty(grace_s)
        running = [call.cancel(reason) for connection in self._connections for call in _calls(connection)]
        for connection in list(self._connections):
            connection.stop()
        waiting = {task for task in (*running, *self._tasks) if task is not None and not task.done()}
        for task in self._tasks:
            task.cancel()
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=CANCEL_WAIT_S)
            if late:
                log.warning("%d calls did not end when they were cancelled", len(late))
        await self.http1.close()
        await self._wait_until_gone()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._paths.clear()

    async def _wait_until_gone(self) -> None:
        """Closing takes a connection a while, with TLS a message of the peer: nothing of it outlives the stop."""
        for server in self._servers:
            if isinstance(server, TlsAcceptor):
                await server.wait_closed()
        await self._wait_empty(GOODBYE_WAIT_S)
        for connection in list(self._connections):
            connection.abort(only_if_sent=True)
        await self._wait_empty(CANCEL_WAIT_S)
        for connection in list(self._connections):
            connection.abort()
        await self._wait_empty(CANCEL_WAIT_S)

    async def _wait_empty(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    # -- what connections tell ----------------------------------------------------------------------------

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in; False while stopping."""
        if self._stopping:
            return False
        self._connections.add(connection)
        self._empty.clear()
        return True

    def replace(self, old: Connection, new: Connection) -> None:
        self._connections.discard(old)
        self._connections.add(new)

    def forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task until it ends, and cancel it at the stop."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def statistics(self) -> dict[str, int]:
        """Connections, running gRPC calls, and bytes of answers that peers have not made room for, now."""
        calls = sum(len(_calls(connection)) for connection in self._connections)
        unsent = sum(
            connection.h2.queued_body_size()
            for connection in self._connections
            if isinstance(connection, Http2Connection)
        )
        return {"connections": len(self._connections), "calls": calls, "unsent_bytes": unsent}


def _calls(connection: Connection) -> Sequence[Call]:
    return list(connection.running) if isinstance(connection, Http2Connection) else []
