"""How streams and connections end: late ends, resets that overtake an answer, lost windows, drains."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from store.listener import Limits, Server
from tests.listener import raw
from tests.listener.echo import Echo, ours
from tests.listener.raw import Peer, frame

MANY = 1_000
TIMEOUT_S = 20
SMALL = replace(Limits(), connection_window_bytes=1 << 20, max_http_body_bytes=20_000)
CANCEL = (8).to_bytes(4, "big")


def message(body: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(body)) + body


def begin(stream: int, body: bytes, method: str = "Unary") -> bytes:
    """A request whose END_STREAM has not been sent."""
    return frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request(method)) + frame(raw.DATA, 0, stream, body)


@contextlib.asynccontextmanager
async def connected(limits: Limits | None = None) -> AsyncIterator[tuple[Peer, Server]]:
    """A peer of a server, for as long as a test may take."""
    async with ours(Echo(), limits) as (server, port), asyncio.timeout(TIMEOUT_S):
        peer = await Peer.connect(port)
        try:
            await peer.until(raw.SETTINGS)
            yield peer, server
        finally:
            peer.close()


async def ended(peer: Peer, stream: int) -> None:
    """Until the stream's answer is whole."""
    while True:
        kind, flags, number, payload = await peer.frame()
        assert kind != raw.GOAWAY, f"the connection was ended: {payload!r}"
        if number == stream and kind == raw.HEADERS and flags & raw.END_STREAM:
            return


async def test_calls_that_are_answered_before_their_end_arrives_do_not_cost_the_connection() -> None:
    """tonic sends END_STREAM in a frame of its own."""
    async with connected() as (peer, _):
        for stream in range(1, 2 * MANY, 2):
            await peer.send(begin(stream, message(b"hello")))
            await ended(peer, stream)
            await peer.send(frame(raw.DATA, raw.END_STREAM, stream))


@pytest.mark.parametrize(
    ("method", "body"),
    [("Bidi", message(b"abort 5 enough") + bytes(5000)), ("Nope", bytes(5000)), ("Unary", b"\0\x7f\xff\xff\xff")],
    ids=["ended", "unknown", "too-large"],
)
async def test_streams_that_the_server_ends_give_their_window_back(method: str, body: bytes) -> None:
    """4 MB of uploads nobody wants, through a window of 1 MiB."""
    async with connected(SMALL) as (peer, _):
        for stream in range(1, 2 * MANY, 2):
            await peer.send(begin(stream, body, method))
            await ended(peer, stream)
            await peer.send(frame(raw.DATA, 0, stream, bytes(4000)))


async def test_a_connection_whose_window_is_being_lost_is_left_in_time() -> None:
    """The stream is reset in the middle of a DATA frame, again and again."""
    async with connected(SMALL) as (peer, _):
        notice = None
        for stream in range(1, 2 * MANY, 2):
            cut = frame(raw.DATA, 0, stream, bytes(16_000))
            await peer.send(begin(stream, message(b"hello")) + cut[:8_000])
            while (found := await peer.frame())[0] != raw.RST_STREAM:
                notice = found if found[0] == raw.GOAWAY else notice
            await peer.send(cut[8_000:])
            if notice is not None:
                break
        assert notice is not None
        assert notice[3][4:8] == bytes(4), "a request to leave, not an error"
        await peer.send(raw.call(stream + 2, b"sent before the notice arrived"))
        assert b"sent before" in (await peer.until(raw.DATA, stream + 2))[3]


async def test_a_window_that_a_slow_handler_fills_is_not_lost() -> None:
    async with connected(replace(SMALL, connection_window_bytes=1 << 17)) as (peer, _):
        await peer.send(begin(1, message(b"wait"), "Bidi"))  # reads nothing of what follows
        await peer.send(frame(raw.DATA, 0, 1, message(bytes(10_000))) * 6)
        for stream in range(3, 2 * MANY, 2):
            await peer.send(begin(stream, message(b"size 0" + b" " * 3_000)))
            await ended(peer, stream)


ROOT = raw.block([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"localhost")])
TOO_LARGE = b"\0\x7f\xff\xff\xff"
OVERTAKEN: dict[str, Callable[[int], bytes]] = {
    "unknown method": lambda stream: begin(stream, b"", "Nope"),
    "malformed timeout": lambda stream: frame(
        raw.HEADERS, raw.END_HEADERS, stream, raw.request("Unary", [(b"grpc-timeout", b"soon")])
    ),
    "no request": lambda stream: frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, stream, raw.request()),
    "cut off": lambda stream: begin(stream, b"") + frame(raw.DATA, raw.END_STREAM, stream, b"\0\0"),
    "too large": lambda stream: begin(stream, TOO_LARGE),
    "too large in a stream": lambda stream: begin(stream, TOO_LARGE, "Bidi"),
    "unknown flag in a stream": lambda stream: begin(stream, b"\7\0\0\0\1x", "Bidi"),
    "http body": lambda stream: (
        frame(raw.HEADERS, raw.END_HEADERS, stream, ROOT) + frame(raw.DATA, 0, stream, bytes(16_000)) * 2
    ),
}


@pytest.mark.parametrize("refused", OVERTAKEN.values(), ids=[name.replace(" ", "-") for name in OVERTAKEN])
async def test_a_refusal_that_a_reset_overtakes_concerns_no_other_call(refused: Callable[[int], bytes]) -> None:
    """Both are in what one read brings: when the refusal is to be sent, there is no stream to send it on."""
    async with connected(SMALL) as (peer, server):
        await peer.send(refused(1) + frame(raw.RST_STREAM, 0, 1, CANCEL) + raw.call(3, b"alive"))
        await ended(peer, 3)
        assert server.statistics()["calls"] == 0


@pytest.mark.parametrize("how", ["reset", "refused"])
async def test_a_handler_that_is_cancelled_before_its_first_step_is_gone(how: str) -> None:
    """Its task never runs, so nothing in it can see to that."""
    async with connected(SMALL) as (peer, server):
        for stream in range(1, 100, 2):
            rest = frame(raw.RST_STREAM, 0, stream, CANCEL) if how == "reset" else b""
            body = message(b"wait") if how == "reset" else TOO_LARGE
            await peer.send(begin(stream, body, "Bidi") + rest)
        await peer.send(raw.call(101, b"last"))
        await ended(peer, 101)
        assert server.statistics()["calls"] == 0


async def drained(stop_s: float, *, after_notice: bytes = b"", answer_ping: bool = True) -> tuple[bytes, float]:
    """What a peer receives of a server that stops, and how long that takes."""
    async with connected() as (peer, server):
        await peer.send(raw.call(1, b"first"))
        await ended(peer, 1)
        began = server.loop.time()
        stopping = asyncio.create_task(server.stop(stop_s))
        _, _, _, payload = await peer.until(raw.PING)
        await peer.send(after_notice)
        if answer_ping:
            await peer.send(frame(raw.PING, raw.ACK, 0, payload))
        received = await peer.closed()
        await stopping
        return received, server.loop.time() - began


async def test_a_call_sent_before_the_notice_of_a_drain_arrived_is_answered() -> None:
    received, _ = await drained(10, after_notice=raw.call(3, b"on its way"))
    assert b"on its way" in received


async def test_a_drain_does_not_wait_for_more_than_the_peers_knowledge() -> None:
    _, took_s = await drained(10)
    assert took_s < 5


async def test_a_peer_that_never_confirms_a_drain_is_left_when_the_grace_ends() -> None:
    _, took_s = await drained(0.3, answer_ping=False)
    assert 0.3 <= took_s < 2
