"""One gRPC stream on a connection of its own, speaking just the HTTP/2 (RFC 9113) that a watch needs.

A stream of grpc.aio hands over one message per few turns of the event loop and one hand-over of the interpreter
lock; under load a watch then lags seconds behind. Here everything that has arrived is parsed in one callback:
measured behind an API server busy with 500 creates a second, the lag falls from seconds to milliseconds.

Flow control is real: the peer may send ``window_bytes`` more than has been read, no more. A ping every ten
seconds finds a peer that is gone without a word. Trailers are not decoded: the end of the stream is an end,
whatever the reason; callers resume or report it as unavailable.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Sequence
from typing import cast
from urllib.parse import urlsplit

WINDOW_BYTES = 4 * 1024 * 1024
_FRAME_BYTES_MAX = 1024 * 1024
_DEFAULT_WINDOW = 65_535
_PING_INTERVAL_S = 10.0
_PING_LIMIT_S = 5.0
_MESSAGES_PER_TURN = 64

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS, _PADDED = 0x1, 0x1, 0x4, 0x8
_INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 4, 5
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_STREAM = 1


class StreamEnded(Exception):
    """The stream or its connection has ended."""


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _hpack_string(text: str) -> bytes:
    """A literal without Huffman coding (RFC 7541 §5.2)."""
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, prefix = len(data) - 127, bytearray((127,))
    while rest >= 128:
        prefix.append(rest % 128 + 128)
        rest //= 128
    return bytes(prefix) + bytes((rest,)) + data


def _header_block(headers: Sequence[tuple[str, str]]) -> bytes:
    """Literal fields without indexing, which need no state on either side (RFC 7541 §6.2.2)."""
    return b"".join(b"\0" + _hpack_string(name) + _hpack_string(value) for name, value in headers)


def _setting(name: int, value: int) -> bytes:
    return name.to_bytes(2, "big") + value.to_bytes(4, "big")


class GrpcStream(asyncio.Protocol):
    """Messages in, messages out, as bytes. Open it with :meth:`open`; close it with :meth:`close`."""

    def __init__(self, scheme: str, authority: str, path: str, metadata: Sequence[tuple[str, str]]) -> None:
        self._headers = [
            (":method", "POST"),
            (":scheme", scheme),
            (":path", path),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        self._transport: asyncio.Transport | None = None
        self._incoming = bytearray()
        self._message = bytearray()
        self._messages: deque[bytes] = deque()
        self._readable = asyncio.Event()
        self._ended = ""
        self._unacknowledged = 0
        self._taken = 0
        self._granted_early = 0
        self._send_window = _DEFAULT_WINDOW
        self._connection_window = _DEFAULT_WINDOW
        self._ping: asyncio.TimerHandle | None = None

    @staticmethod
    async def open(
        url: str, path: str, metadata: Sequence[tuple[str, str]] = (), context: ssl.SSLContext | None = None
    ) -> GrpcStream:
        """Connect and send the request's headers. An https:// URL needs a ``context`` that offers h2.

        Raises:
            OSError: no connection.
        """
        parts = urlsplit(url)
        loop = asyncio.get_running_loop()
        port = parts.port or (443 if context else 80)
        _, stream = await loop.create_connection(
            lambda: GrpcStream(parts.scheme, parts.netloc, path, metadata), parts.hostname or "", port, ssl=context
        )
        return stream

    # --- what the caller does ---

    def send(self, message: bytes) -> bool:
        """Send a message; False if the peer's window has no room for it.

        Raises:
            StreamEnded: there is nobody to send to.
        """
        if self._transport is None:
            raise StreamEnded(self._ended or "not connected")
        if not self._ended and self._transport.is_closing():
            self._end("connection lost")  # the loop has closed it and has not said so yet
        if self._ended:
            raise StreamEnded(self._ended)
        payload = b"\0" + len(message).to_bytes(4, "big") + message
        if len(payload) > min(self._send_window, self._connection_window):
            return False
        self._send_window -= len(payload)
        self._connection_window -= len(payload)
        self._transport.write(_frame(_DATA, 0, _STREAM, payload))
        return True

    async def receive(self) -> bytes:
        """The next message.

        Raises:
            StreamEnded: after the last one.
        """
        while not self._messages:
            if self._ended:
                raise StreamEnded(self._ended)
            self._readable.clear()
            await self._readable.wait()
        message = self._messages.popleft()
        early = min(self._granted_early, len(message) + 5) if not self._message else 0
        self._granted_early -= early
        self._acknowledge(len(message) + 5 - early)
        self._taken += 1
        if self._taken % _MESSAGES_PER_TURN == 0:
            await asyncio.sleep(0)  # a long backlog must not keep the loop from everything else
        return message

    def close(self) -> None:
        """End the stream and the connection. Safe to call twice."""
        self._end("closed by the caller")

    def _acknowledge(self, count: int) -> None:
        """Let the peer send as much again, once half the window has been read."""
        self._unacknowledged += count
        if self._unacknowledged < WINDOW_BYTES // 2 or self._transport is None or self._ended:
            return
        increment = self._unacknowledged.to_bytes(4, "big")
        self._unacknowledged = 0
        updates = (_frame(_WINDOW_UPDATE, 0, stream, increment) for stream in (0, _STREAM))
        self._write(b"".join(updates))

    def _write(self, data: bytes) -> None:
        """Write, unless there is nobody left. A transport that is closed already, but has not told us so, ends the
        stream here: to write to it is an error on some loops."""
        if self._transport is None or self._ended:
            return
        if self._transport.is_closing():
            self._end("connection lost")
        else:
            self._transport.write(data)

    def _end(self, why: str) -> None:
        if self._ended:
            return
        self._ended = why
        self._readable.set()
        if self._ping is not None:
            self._ping.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- what the loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not every loop's transports inherit from the class of the standard library.
        self._transport = cast(asyncio.Transport, transport)
        settings = _setting(_INITIAL_WINDOW_SIZE, WINDOW_BYTES) + _setting(_MAX_FRAME_SIZE, _FRAME_BYTES_MAX)
        grow = (WINDOW_BYTES - _DEFAULT_WINDOW).to_bytes(4, "big")
        self._transport.write(
            _PREFACE
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, grow)
            + _frame(_HEADERS, _END_HEADERS, _STREAM, _header_block(self._headers))
        )
        self._schedule_ping()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"connection lost: {exc}" if exc else "connection closed")

    def data_received(self, data: bytes) -> None:
        buffer = self._incoming
        buffer += data
        position = 0
        while len(buffer) - position >= 9 and not self._ended:
            length = int.from_bytes(buffer[position : position + 3], "big")
            if len(buffer) - position - 9 < length:
                break
            kind, flags = buffer[position + 3], buffer[position + 4]
            stream = int.from_bytes(buffer[position + 5 : position + 9], "big") & 0x7FFFFFFF
            payload = bytes(buffer[position + 9 : position + 9 + length])
            position += 9 + length
            self._take_frame(kind, flags, stream, payload)
        del buffer[:position]

    def _take_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self._take_data(payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload)
        elif kind == _SETTINGS and not flags & _ACK:
            self._take_settings(payload)
        elif kind == _PING:
            self._take_ping(flags, payload)
        elif kind == _WINDOW_UPDATE:
            self._take_window(stream, int.from_bytes(payload[:4], "big") & 0x7FFFFFFF)
        elif kind == _RST_STREAM:
            self._end("stream reset by the server")
        elif kind == _GOAWAY:
            self._end("server is going away")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            self._end("stream ended by the server")

    def _take_data(self, data: bytes) -> None:
        buffer = self._message
        buffer += data
        position = 0
        while len(buffer) - position >= 5:
            length = int.from_bytes(buffer[position + 1 : position + 5], "big")
            if len(buffer) - position - 5 < length:
                break
            if buffer[position]:
                self._end("compressed message without asking for compression")
                return
            self._messages.append(bytes(buffer[position + 5 : position + 5 + length]))
            position += 5 + length
        if position:
            del buffer[:position]
            self._readable.set()
        # A message larger than the window is only completed by granting more before it has been read.
        excess = len(buffer) - self._granted_early - WINDOW_BYTES // 2
        if excess > 0:
            self._granted_early += excess
            self._acknowledge(excess)

    def _take_settings(self, payload: bytes) -> None:
        for offset in range(0, len(payload) - 5, 6):
            name = int.from_bytes(payload[offset : offset + 2], "big")
            if name == _INITIAL_WINDOW_SIZE:
                self._send_window += int.from_bytes(payload[offset + 2 : offset + 6], "big") - _DEFAULT_WINDOW
        self._write(_frame(_SETTINGS, _ACK, 0, b""))

    def _take_window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._connection_window += increment
        else:
            self._send_window += increment

    def _take_ping(self, flags: int, payload: bytes) -> None:
        if flags & _ACK:
            self._schedule_ping()
        else:
            self._write(_frame(_PING, _ACK, 0, payload))

    def _schedule_ping(self) -> None:
        if self._ping is not None:
            self._ping.cancel()
        self._ping = asyncio.get_running_loop().call_later(_PING_INTERVAL_S, self._send_ping)

    def _send_ping(self) -> None:
        self._write(_frame(_PING, 0, 0, b"kvorum\0\0"))
        if not self._ended:
            loop = asyncio.get_running_loop()
            self._ping = loop.call_later(_PING_LIMIT_S, self._end, "no answer to a ping")
