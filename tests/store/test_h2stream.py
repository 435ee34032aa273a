"""The stream of a watch when its connection dies in ways that the loop has not told of yet."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from store import h2stream
from store.h2stream import GrpcStream, StreamEnded


class _Dying(asyncio.Transport):
    """Once closed it cannot be written to, and whoever uses it is told later, if ever: what uvloop's do."""

    closed = False

    def write(self, data: object) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def opened() -> tuple[GrpcStream, _Dying]:
    stream, transport = GrpcStream("http", "h:1", "/watch", ()), _Dying()
    stream.connection_made(cast(asyncio.BaseTransport, transport))
    return stream, transport


async def test_a_ping_that_is_due_on_a_dead_connection_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h2stream, "_PING_INTERVAL_S", 0.01)
    stream, transport = opened()
    transport.closed = True
    async with asyncio.timeout(5):
        with pytest.raises(StreamEnded, match="connection lost"):
            await stream.receive()


async def test_a_message_to_a_dead_connection_is_refused() -> None:
    stream, transport = opened()
    transport.closed = True
    with pytest.raises(StreamEnded, match="connection lost"):
        stream.send(b"x")


async def test_frames_left_over_on_a_dead_connection_do_no_harm() -> None:
    stream, transport = opened()
    transport.closed = True
    settings, ping = b"\0\0\0\x04\0\0\0\0\0", b"\0\0\x08\x06\0\0\0\0\0" + bytes(8)
    stream.data_received(settings + ping)
    with pytest.raises(StreamEnded, match="connection lost"):
        await stream.receive()
