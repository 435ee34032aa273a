"""Hand-made HTTP/2 frames, for peers that do not follow the rules."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence

from tests.listener.echo import SERVICE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def integer(value: int, prefix: int, first: int) -> bytes:
    """An HPACK integer (RFC 7541 §5.1)."""
    top = (1 << prefix) - 1
    if value < top:
        return bytes((first | value,))
    out, value = bytearray((first | top,)), value - top
    while value >= 128:
        out.append(value % 128 + 128)
        value //= 128
    out.append(value)
    return bytes(out)


def block(headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A header block of literals without indexing."""
    return b"".join(
        b"\0" + integer(len(name), 7, 0) + name + integer(len(value), 7, 0) + value for name, value in headers
    )


def request(method: str = "Unary", extra: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The header block of a gRPC request."""
    return block(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", f"/{SERVICE}/{method}".encode()),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            *extra,
        ]
    )


def message(body: bytes) -> bytes:
    """A gRPC message with its prefix, uncompressed."""
    return b"\0" + struct.pack(">I", len(body)) + body


def call(stream: int, body: bytes, method: str = "Unary", extra: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole unary request."""
    headers = frame(HEADERS, END_HEADERS, stream, request(method, extra))
    return headers + frame(DATA, END_STREAM, stream, message(body))


OPENING = PREFACE + frame(SETTINGS, 0, 0)


class Peer:
    """A TCP connection that reads what comes, frame by frame."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, opening: bytes = OPENING) -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", port))
        peer.writer.write(opening)
        return peer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def frame(self) -> tuple[int, int, int, bytes]:
        head = await self.reader.readexactly(9)
        payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
        return head[3], head[4], int.from_bytes(head[5:9], "big"), payload

    async def until(self, kind: int, stream: int | None = None) -> tuple[int, int, int, bytes]:
        """The next frame of a kind."""
        while True:
            found = await self.frame()
            if found[0] == kind and stream in (None, found[2]):
                return found

    async def closed(self, timeout_s: float = 5.0) -> bytes:
        """Everything until the other side closes."""
        received = bytearray()
        try:
            async with asyncio.timeout(timeout_s):
                with contextlib.suppress(ConnectionError):
                    while data := await self.reader.read(65536):
                        received += data
        finally:
            self.close()
        return bytes(received)

    def close(self) -> None:
        self.writer.transport.abort()
