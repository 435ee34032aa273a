"""A connection that was just accepted, after TLS where that is asked for: its first bytes tell the protocol."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from store.listener.http1 import Http1Connection
from store.listener.http2 import PREFACE, Http2Connection, peer_name

if TYPE_CHECKING:
    from store.listener.server import Server

log = logging.getLogger(__name__)


class Accepted(asyncio.Protocol):
    """Hands itself over to HTTP/2 when the connection preface arrives, to HTTP/1.1 when anything else does."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports inherit from the class of the standard library.
        self._transport = cast(asyncio.Transport, transport)
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._timer = self._server.loop.call_later(self._server.limits.handshake_timeout_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._sniff()

    def _sniff(self) -> None:
        start = self._received[: len(PREFACE)]
        if not PREFACE.startswith(start):
            self._hand_over(Http1Connection)
        elif len(start) == len(PREFACE):
            self._hand_over(Http2Connection)

    def _hand_over(self, kind: type[Http1Connection] | type[Http2Connection]) -> None:
        assert self._transport is not None
        if self._timer is not None:
            self._timer.cancel()
        connection = kind(self._server, self._transport)
        self._server.replace(self, connection)
        self._transport.set_protocol(connection)
        connection.data_received(self._received)
        self._received = b""

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._server.forget(self)

    def _too_slow(self) -> None:
        if self._transport is not None:
            log.info("%s: closed, it said nothing", peer_name(self._transport))
            self._transport.abort()

    def drain(self) -> None:
        """A connection without a request has nothing to finish."""
        self.stop()

    def stop(self) -> None:
        self.abort()

    def abort(self, *, only_if_sent: bool = False) -> None:
        if self._transport is not None:
            self._transport.abort()
