"""Peers that break the rules: bounded in time and memory, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import struct
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from store.listener import Limits, Server
from tests.listener import raw
from tests.listener.echo import MAX_BYTES, SERVICE, Echo, channel, ours
from tests.listener.raw import OPENING, PREFACE, Peer, frame

MEMORY_BYTES = 48 * 1024 * 1024
LIMITS = replace(
    Limits(max_receive_message_bytes=MAX_BYTES),
    handshake_timeout_s=0.5,
    http_header_timeout_s=0.5,
    http_body_timeout_s=0.5,
)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@dataclass
class Target:
    server: Server
    port: int
    echo: Echo


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    """A server, and a bystander who is answered all the time, and soon."""
    echo = Echo()
    async with ours(echo, LIMITS) as (server, port), channel(port) as client:
        bystander = client.unary_unary(f"/{SERVICE}/Unary")
        assert await bystander(b"before") == b"before"
        stop, worst = asyncio.Event(), 0.0

        async def stand_by() -> None:
            nonlocal worst
            while not stop.is_set():
                began = time.monotonic()
                assert await bystander(b"hello", timeout=5) == b"hello"
                worst = max(worst, time.monotonic() - began)
                await asyncio.sleep(0.01)

        before, watching = resident_bytes(), asyncio.create_task(stand_by())
        yield Target(server, port, echo)
        stop.set()
        await watching
        assert worst < 1.0
        assert resident_bytes() - before < MEMORY_BYTES


async def test_rapid_reset(target: Target) -> None:
    peer = await Peer.connect(target.port)
    closing = asyncio.create_task(peer.closed(10))
    headers = raw.request("Unary")
    try:
        for first in range(0, 20_000, 100):
            streams = range(2 * first + 1, 2 * (first + 100) + 1, 2)
            await peer.send(
                b"".join(
                    frame(raw.HEADERS, raw.END_HEADERS, stream, headers)
                    + frame(raw.RST_STREAM, 0, stream, b"\0\0\0\x08")
                    for stream in streams
                )
            )
    except ConnectionError:
        pass
    assert raw.frame(raw.GOAWAY, 0, 0)[3:4] in await closing


async def test_a_flood_of_continuations(target: Target) -> None:
    peer = await Peer.connect(target.port)
    await peer.send(frame(raw.HEADERS, 0, 1, raw.request()))
    try:
        for _ in range(100):
            await peer.send(frame(raw.CONTINUATION, 0, 1, raw.block([(b"x", b"y" * 100)])))
    except ConnectionError:
        pass
    await peer.closed()


async def test_empty_continuations_without_end(target: Target) -> None:
    peer = await Peer.connect(target.port)
    await peer.send(frame(raw.HEADERS, 0, 1, raw.request()))
    with contextlib.suppress(ConnectionError):
        await peer.send(frame(raw.CONTINUATION, 0, 1) * 100_000)
    await peer.closed()


@pytest.mark.parametrize("kind", [raw.SETTINGS, raw.PING])
async def test_a_flood_that_asks_for_answers_and_reads_none(target: Target, kind: int) -> None:
    peer = await Peer.connect(target.port)
    one = frame(kind, 0, 0, b"" if kind == raw.SETTINGS else bytes(8))
    try:
        async with asyncio.timeout(5):
            while True:
                await peer.send(one * 10_000)
    except (ConnectionError, TimeoutError):
        pass
    peer.close()


async def test_a_megabyte_of_headers(target: Target) -> None:
    peer = await Peer.connect(target.port)
    big = raw.request("Unary", [(b"x-%d" % number, b"y" * 8000) for number in range(130)])
    pieces = [big[start : start + 16_384] for start in range(0, len(big), 16_384)]
    try:
        await peer.send(frame(raw.HEADERS, 0, 1, pieces[0]))
        for piece in pieces[1:-1]:
            await peer.send(frame(raw.CONTINUATION, 0, 1, piece))
        await peer.send(frame(raw.CONTINUATION, raw.END_HEADERS, 1, pieces[-1]))
    except ConnectionError:
        pass
    assert b"test.Echo" not in await peer.closed()


async def test_a_header_bomb(target: Target) -> None:
    """One indexed field of 4 kB, named again a thousand times in a few bytes."""
    peer = await Peer.connect(target.port)
    entry = b"\x40" + raw.integer(1, 7, 0) + b"x" + raw.integer(3900, 7, 0) + b"y" * 3900
    await peer.send(frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request() + entry + b"\xbe" * 10_000))
    await peer.closed()


async def status_of(peer: Peer, stream: int) -> bytes:
    """The header block that ends a stream."""
    while True:
        _, flags, _, payload = await asyncio.wait_for(peer.until(raw.HEADERS, stream), 5)
        if flags & raw.END_STREAM:
            return payload


@pytest.mark.parametrize("method", ["Unary", "Bidi"])
async def test_a_length_prefix_of_2_gb_is_refused_unread(target: Target, method: str) -> None:
    peer = await Peer.connect(target.port)
    await peer.send(frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request(method)))
    await peer.send(frame(raw.DATA, 0, 1, b"\0" + struct.pack(">I", (1 << 31) - 1) + b"x" * 100))
    await status_of(peer, 1)
    await asyncio.wait_for(peer.until(raw.RST_STREAM, 1), 5)
    await peer.send(raw.call(3, b"still alive"))
    await status_of(peer, 3)
    peer.close()


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """40 MB in 40 kB: within a window, and twice what a message may be."""
    packer = zlib.compressobj(9, wbits=16 + zlib.MAX_WBITS)
    return b"".join(packer.compress(bytes(1024 * 1024)) for _ in range(40)) + packer.flush()


async def test_a_decompression_bomb(bomb: bytes, target: Target) -> None:
    peer = await Peer.connect(target.port)
    message = b"\1" + struct.pack(">I", len(bomb)) + bomb
    headers = raw.request("Unary", [(b"grpc-encoding", b"gzip")])
    await peer.send(frame(raw.HEADERS, raw.END_HEADERS, 1, headers))
    pieces = [message[start : start + 16_000] for start in range(0, len(message), 16_000)]
    for number, piece in enumerate(pieces):
        await peer.send(frame(raw.DATA, raw.END_STREAM if number == len(pieces) - 1 else 0, 1, piece))
    await status_of(peer, 1)
    peer.close()


@pytest.mark.parametrize(
    "message",
    [b"", b"\0\0\0", b"\0\0\0\0\x05abc", b"\2\0\0\0\1x", b"\1\0\0\0\1x"],
    ids=["none", "cut-prefix", "cut-body", "bad-flag", "not-compressed"],
)
async def test_malformed_messages_end_their_call_only(target: Target, message: bytes) -> None:
    peer = await Peer.connect(target.port)
    await peer.send(frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request()))
    await peer.send(frame(raw.DATA, raw.END_STREAM, 1, message) + raw.call(3, b"ok"))
    await status_of(peer, 1)
    await status_of(peer, 3)
    peer.close()


@pytest.mark.parametrize("header", [(b"grpc-timeout", b"123456789S"), (b"grpc-timeout", b"1"), (b"x-bin", b"!")])
async def test_malformed_headers_end_their_call_only(target: Target, header: tuple[bytes, bytes]) -> None:
    peer = await Peer.connect(target.port)
    await peer.send(raw.call(1, b"one", extra=[header]) + raw.call(3, b"two"))
    await status_of(peer, 1)
    await status_of(peer, 3)
    peer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 1000,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"r" * 500,
        PREFACE + b"\xff" * 1000,
        OPENING + b"\0\0\x10\x63\0\0\0\0\1" + bytes(16) + b"\xff\xff\xff\1\1\0\0\0\1",
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n\r\n\r\n",
    ],
)
async def test_garbage(target: Target, garbage: bytes) -> None:
    peer = await Peer.connect(target.port, garbage)
    await peer.closed()
    peer.close()


@pytest.mark.parametrize(
    "start",
    [b"", b"PRI * HTT", b"GET /health HTTP/1.1\r\nHost: x\r\n", PREFACE, PREFACE + frame(raw.SETTINGS, 0, 0)[:5]],
    ids=["nothing", "half-preface", "half-http-header", "no-settings", "half-settings"],
)
async def test_a_slow_start_is_cut_off(target: Target, start: bytes) -> None:
    peer = await Peer.connect(target.port, start)
    began = time.monotonic()
    await peer.closed()
    assert time.monotonic() - began < 3


async def test_slow_http_bodies_are_cut_off(target: Target) -> None:
    peer = await Peer.connect(target.port, b"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    assert b" 408 " in await peer.closed()


@pytest.mark.parametrize(
    "smuggled",
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +4\r\n\r\nabcd",
        b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\nX: y\r\n\r\n\x00",
    ],
)
async def test_smuggling_attempts_are_bad_requests(target: Target, smuggled: bytes) -> None:
    peer = await Peer.connect(target.port, smuggled)
    assert (await peer.closed()).startswith((b"HTTP/1.1 400", b"HTTP/1.0 400"))


@pytest.mark.parametrize(
    "request_",
    [
        b"Content-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
        b"Content-Encoding: deflate\r\nContent-Length: 9\r\n\r\nnot zlib!",
        b"Content-Encoding: br\r\nContent-Length: 9\r\n\r\nnot br...",
        b"Content-Encoding: zstd\r\nContent-Length: 9\r\n\r\nnot zstd!",
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcXX",
    ],
    ids=["gzip", "deflate", "br", "zstd", "chunk-size", "chunk-end"],
)
async def test_bodies_that_cannot_be_decoded_are_bad_requests(target: Target, request_: bytes) -> None:
    peer = await Peer.connect(
        target.port, b"POST /v3/kv/put HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + request_
    )
    answer = await peer.closed()
    assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")), answer


async def test_pipelined_requests_whose_answers_nobody_reads(target: Target) -> None:
    peer = await Peer.connect(target.port, b"")
    one = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    try:
        async with asyncio.timeout(1):
            while True:
                await peer.send(one * 1000)
    except (ConnectionError, TimeoutError):
        pass
    peer.close()


async def test_a_peer_that_opens_its_window_for_nobody(target: Target) -> None:
    """Unary answers that are never read stay within the server's bounds for one connection."""
    opening = PREFACE + frame(raw.SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    peer = await Peer.connect(target.port, opening)
    await peer.send(raw.call(1, b"100000000 65536", "ServerStream"))
    await asyncio.wait_for(peer.until(raw.HEADERS, 1), 5)
    await asyncio.sleep(0.3)
    assert target.server.statistics()["calls"] >= 1
    peer.close()
    await asyncio.wait_for(target.echo.cancelled.wait(), 5)


async def test_a_stalled_upload_holds_one_window(target: Target) -> None:
    """A handler that does not read: the peer is stopped by its window, whatever it would send."""
    peer = await Peer.connect(target.port)
    await peer.send(frame(raw.HEADERS, raw.END_HEADERS, 1, raw.request("Bidi")))
    await peer.send(frame(raw.DATA, 0, 1, b"\0\0\0\0\4wait"))
    await target.echo.started.wait()
    piece = b"\0" + struct.pack(">I", 8000) + bytes(8000)
    closing = asyncio.create_task(peer.closed())
    try:
        for _ in range(100):  # 800 kB against a window of 256 kB
            await peer.send(frame(raw.DATA, 0, 1, piece))
    except ConnectionError:
        pass
    await asyncio.wait_for(target.echo.cancelled.wait(), 5)
    peer.close()
    await closing


async def test_idle_connections_cost_little() -> None:
    """5,000 connections that only greeted; soft limits of open files may allow fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 12_000), hard))
    count = min(5000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 2)
    echo = Echo()
    try:
        async with ours(echo) as (server, port), channel(port) as client:
            before = resident_bytes()
            peers: list[Peer] = []
            for start in range(0, count, 100):
                group = range(start, min(start + 100, count))
                peers += await asyncio.gather(*(Peer.connect(port) for _ in group))
            began = time.monotonic()
            assert await client.unary_unary(f"/{SERVICE}/Unary")(b"hello", timeout=5) == b"hello"
            assert time.monotonic() - began < 1
            assert server.statistics()["connections"] >= count
            assert (resident_bytes() - before) / count < 100_000  # both ends are in this process
            for peer in peers:
                peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_dead_peer_is_found_by_a_ping() -> None:
    limits = replace(Limits(), keepalive_interval_s=0.2, keepalive_timeout_s=0.2)
    async with ours(Echo(), limits) as (server, port):
        peer = await Peer.connect(port)
        assert (await asyncio.wait_for(peer.until(raw.PING), 5))[0] == raw.PING
        await peer.closed()
        assert server.statistics()["connections"] == 0


async def test_a_living_peer_is_kept() -> None:
    limits = replace(Limits(), keepalive_interval_s=0.1, keepalive_timeout_s=0.2)
    async with ours(Echo(), limits) as (_, port):
        peer = await Peer.connect(port)
        for _ in range(5):
            *_, payload = await asyncio.wait_for(peer.until(raw.PING), 5)
            await peer.send(frame(raw.PING, raw.ACK, 0, payload))
        await peer.send(raw.call(1, b"hello"))
        await status_of(peer, 1)
        peer.close()
