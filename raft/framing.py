"""Frames on a TCP connection between members, and nothing about what is in them.

A frame is its payload's length (4 bytes, big endian), a kind (1 byte) and the payload. The first frame of a
connection is a HELLO whose payload begins with a magic number, so that a client or a browser that strays onto
the peer port is told from a member at once.
"""

from __future__ import annotations

import asyncio
import struct
from enum import IntEnum
from typing import Any, Final, NamedTuple, cast

import msgpack

from raft.errors import CodecError

MAGIC: Final = b"kvorum-peer-1\n"
MAX_FRAME_BYTES: Final = 64 << 20
"""A longer frame is refused unread: the largest message is a few batches of entries, far below."""

_HEADER: Final = struct.Struct(">IB")


class Kind(IntEnum):
    """What a frame carries. Append only, never renumber."""

    HELLO = 0
    WELCOME = 1
    REFUSED = 2
    MESSAGES = 3
    CHUNK = 4
    END = 5
    CALL = 6
    ANSWER = 7
    PING = 8
    PONG = 9
    REMOVED = 10


class Hello(NamedTuple):
    """Who opens a connection to whom, and for what: "messages", "snapshot", or "describe", which asks what
    cluster this is and may come from anyone (the ids are then 0)."""

    cluster_id: int
    from_: int
    to: int
    purpose: str

    def encode(self) -> bytes:
        return MAGIC + bytes(msgpack.packb(self))

    @classmethod
    def decode(cls, payload: bytes) -> Hello:
        """Raises CodecError for anything that a member of ours would not send."""
        if not payload.startswith(MAGIC):
            raise CodecError("not a Kvorum member, or one of another protocol version")
        try:
            cluster_id, from_, to, purpose = msgpack.unpackb(payload[len(MAGIC) :])
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"a damaged greeting: {error}") from None
        if not all(type(number) is int for number in (cluster_id, from_, to)) or type(purpose) is not str:
            raise CodecError("a damaged greeting")
        return cls(cluster_id, from_, to, purpose)


class FrameProtocol(asyncio.Protocol):
    """Splits what arrives into frames. Subclasses say what to do with one, and with the end."""

    transport: asyncio.Transport | None = None

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._over = False
        """What still arrives is not read."""
        self._clock = asyncio.get_running_loop().time
        self.last_received = 0.0
        self.greeted = False

    def frame_received(self, kind: int, payload: bytes) -> None:
        """One whole frame. A CodecError raised here ends the connection."""
        raise NotImplementedError

    def closed(self, reason: str) -> None:
        """The connection is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its bases
        self.last_received = self._clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.closed(str(exc) if exc is not None else "the peer closed the connection")

    def data_received(self, data: bytes) -> None:
        self.last_received = self._clock()
        try:
            if self._buffer:
                self._buffer += data
                taken = self._take(self._buffer)
                if taken and self._buffer:
                    del self._buffer[:taken]
            else:  # as a rule a read brings whole frames
                taken = self._take(data)
                if taken < len(data) and not self._over:
                    self._buffer += memoryview(data)[taken:]
        except CodecError as error:
            self.reject(str(error))

    def _take(self, data: bytes | bytearray) -> int:
        """Take the whole frames that ``data`` begins with. Returns how many bytes they are."""
        start, end = 0, len(data)
        while end - start >= _HEADER.size and not self._over:
            length, kind = _HEADER.unpack_from(data, start)
            # Before the greeting nothing long is believed: HTTP's "GET /" would be a frame of a gigabyte.
            if length > (MAX_FRAME_BYTES if self.greeted else 4096):
                raise CodecError("not a Kvorum member" if not self.greeted else f"a frame of {length} bytes")
            stop = start + _HEADER.size + length
            if stop > end:
                break
            payload = bytes(memoryview(data)[start + _HEADER.size : stop])
            start = stop
            self.frame_received(kind, payload)
        return start

    def reject(self, reason: str) -> None:
        """What arrived is not acceptable: end the connection."""
        self.forget_input()
        self.abort()

    def forget_input(self) -> None:
        """Read nothing more of what has arrived or will."""
        self._over = True
        self._buffer.clear()

    def send(self, kind: Kind, payload: bytes = b"") -> None:
        """Queue one frame; dropped when the connection is gone."""
        if self.transport is not None:
            self.transport.write(_HEADER.pack(len(payload), kind) + payload)

    @property
    def unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


def peer_address(transport: asyncio.Transport | None) -> str:
    name: Any = transport.get_extra_info("peername") if transport is not None else None
    return f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "an unknown address"
