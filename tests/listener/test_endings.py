"""How streams and connections end: late ends, resets that overtake an answer, lost windows, drains."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from store.listener import HttpApplication, HttpRequest, HttpResponse, Limits, Server
from store.listener.http2 import SLICE_BYTES
from tests.listener import raw
from tests.listener.echo import SERVICE, Echo, channel, ours
from tests.listener.raw import Peer, frame, message

MANY = 1_000
TOO_LARGE = b"\0\x7f\xff\xff\xff"
TIMEOUT_S = 20
SMALL = replace(Limits(), connection_window_bytes=1 << 20, max_http_body_bytes=20_000)
INTERNAL_ERROR, CANCEL, ENHANCE_YOUR_CALM = (
    (2).to_bytes(4, "big"),
    (8).to_bytes(4, "big"),
    (11).to_bytes(4, "big"),
)


def begin(stream: int, body: bytes, method: str = "Unary") -> bytes:
    """A request whose END_STREAM has not been sent."""
    return frame(raw.HEADERS, raw.END_HEADERS, stream, raw.request(method)) + frame(raw.DATA, 0, stream, body)


@contextlib.asynccontextmanager
async def connected(
    limits: Limits | None = None, http: HttpApplication | None = None
) -> AsyncIterator[tuple[Peer, Server]]:
    """A peer of a server, for as long as a test may take."""
    async with ours(Echo(), limits, http) as (server, port), asyncio.timeout(TIMEOUT_S):
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
    [("Bidi", message(b"abort 5 enough") + bytes(5000)), ("Nope", bytes(5000)), ("Unary", TOO_LARGE)],
    ids=["ended", "unknown", "too-large"],
)
async def test_streams_that_the_server_ends_give_their_window_back(method: str, body: bytes) -> None:
    """4 MB of uploads nobody wants, through a window of 1 MiB."""
    async with connected(SMALL) as (peer, _):
        for stream in range(1, 2 * MANY, 2):
            await peer.send(begin(stream, body, method))
            await ended(peer, stream)
            # What was on its way; then the peer sees that it is answered.
            await peer.send(frame(raw.DATA, 0, stream, bytes(4000)) + frame(raw.RST_STREAM, 0, stream, bytes(4)))


async def test_who_does_not_end_a_call_that_is_answered_is_cut_off_and_sent_elsewhere_in_the_end() -> None:
    """In the middle of a DATA frame, which costs the connection a part of its window each time."""
    async with connected(replace(SMALL, linger_s=0.01, max_cut_off=20)) as (peer, _):
        for stream in range(1, 41, 2):
            cut = frame(raw.DATA, 0, stream, bytes(16_000))
            await peer.send(begin(stream, message(b"hello")) + cut[:8_000])
            assert (await peer.until(raw.RST_STREAM, stream))[3] == bytes(4)
            await peer.send(cut[8_000:])
        assert (await peer.until(raw.GOAWAY))[3][4:8] == bytes(4), "a request to leave, not an error"
        await peer.send(raw.call(43, b"sent before the notice arrived"))
        assert b"sent before" in (await peer.until(raw.DATA, 43))[3]


async def test_an_answer_that_waits_for_the_peers_window_is_not_cut_off() -> None:
    """The trailers wait behind it."""
    async with connected(replace(SMALL, linger_s=0.01)) as (peer, _):
        await peer.send(begin(1, message(b"size 65530")))  # and 5 of its prefix: the window, to the last byte
        await peer.send(begin(3, message(b"size 10")))
        await asyncio.sleep(0.1)  # ten times what an answered call may take to end
        await peer.send(frame(raw.WINDOW_UPDATE, 0, 0, (1000).to_bytes(4, "big")))
        await ended(peer, 3)
        await peer.send(frame(raw.WINDOW_UPDATE, 0, 1, (1000).to_bytes(4, "big")))
        assert (await peer.until(raw.RST_STREAM, 1))[3] == bytes(4)


@pytest.mark.parametrize(
    ("method", "body"), [("Unary", TOO_LARGE), ("Bidi", message(b"abort 5 enough")), ("Nope", b"")]
)
async def test_an_answer_that_a_peer_does_not_read_yet_is_not_cut_off(method: str, body: bytes) -> None:
    """It waits in libnghttp2 while the transport is full, and a reset would overtake it there."""
    async with connected(replace(SMALL, linger_s=0.05, transport_buffer_bytes=4096)) as (peer, server):
        settings = frame(raw.SETTINGS, 0, 0, b"\0\4\x7f\xff\xff\xff")
        await peer.send(settings + frame(raw.WINDOW_UPDATE, 0, 0, (1 << 30).to_bytes(4, "big")))
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(begin(1, message(b"-1 60000"), "ServerStream"))
        connection: Any = next(iter(server._connections))
        while not connection._paused:  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.01)
        await peer.send(begin(3, body, method))
        while 3 not in connection._retired:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # four times what an answered call may take to end
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        await peer.send(frame(raw.RST_STREAM, 0, 1, CANCEL))
        await ended(peer, 3)


ROOT = raw.block([(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/x"), (b":authority", b"localhost")])
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


@pytest.mark.parametrize(
    "wrong",
    [frame(raw.DATA, 0, 1, TOO_LARGE), frame(raw.DATA, 0, 1, b"\7\0\0\0\1x"), frame(raw.DATA, 1, 1, b"\0")],
    ids=["too-large", "unknown-flag", "cut-off"],
)
async def test_an_end_that_a_reset_overtakes_concerns_no_other_call(wrong: bytes) -> None:
    """As above, of a call whose first answer is out."""
    async with connected() as (peer, server):
        await peer.send(begin(1, message(b"one"), "Bidi"))
        assert (await peer.until(raw.DATA, 1))[3] == message(b"one")
        await peer.send(wrong + frame(raw.RST_STREAM, 0, 1, CANCEL) + raw.call(3, b"alive"))
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


@pytest.mark.parametrize("request_", [b"trailing", b"initial"])
async def test_metadata_that_cannot_be_sent_fails_the_call_at_once(request_: bytes) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        if request == b"trailing":
            context.set_trailing_metadata((("name", "\u20ac"),))
        else:
            await context.send_initial_metadata((("name", "\u20ac"),))
        return request

    async with ours(Echo()) as (server, port), channel(port) as client:
        server.add_registered_method_handlers("test.Odd", {"Odd": grpc.unary_unary_rpc_method_handler(handler)})
        call = client.unary_unary("/test.Odd/Odd")(request_, timeout=TIMEOUT_S)
        assert await call.code() is grpc.StatusCode.UNKNOWN


async def test_metadata_that_cannot_be_read_is_refused_even_of_an_unknown_method() -> None:
    class Nobody(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
        def service(self, handler_call_details: Any) -> None:
            return None

    async with connected() as (peer, server):
        server.add_generic_rpc_handlers([Nobody()])
        await peer.send(raw.call(1, b"", "Nope", [(b"x-bin", b"%%%")]) + raw.call(3, b"alive"))
        await ended(peer, 3)


async def _lines() -> AsyncIterator[bytes]:
    yield b"one"
    raise ValueError("on purpose")


async def _cancelled() -> AsyncIterator[bytes]:
    yield b"one"
    raise asyncio.CancelledError


async def _answer(request: HttpRequest) -> HttpResponse:
    if request.path == "/cancelled":
        return HttpResponse(200, stream=_cancelled())
    return (
        HttpResponse(200, stream=_lines())
        if request.path == "/lines"
        else HttpResponse(200, headers={"X": "\u20ac"})
    )


@pytest.mark.parametrize("path", [b"/lines", b"/header", b"/cancelled"])
async def test_an_http_answer_that_fails_is_seen_to_have_failed(path: bytes) -> None:
    headers = raw.block([(b":method", b"GET"), (b":scheme", b"http"), (b":path", path), (b":authority", b"l")])
    async with connected(http=_answer) as (peer, _):
        await peer.send(frame(raw.HEADERS, raw.END_HEADERS | raw.END_STREAM, 1, headers))
        assert (await peer.until(raw.RST_STREAM, 1))[3] == INTERNAL_ERROR


async def test_a_stream_over_http1_that_fails_to_connect_elsewhere_is_not_taken_for_the_peers_going() -> None:
    async def lines() -> AsyncIterator[bytes]:
        yield b"one"
        raise ConnectionRefusedError("the one behind us")

    async def answer(_request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, stream=lines())

    async with ours(Echo(), http=answer) as (_, port), asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = await reader.read()
        writer.close()
    assert b"one" in received
    assert not received.endswith(b"0\r\n\r\n"), "as if it were whole"


# -- drains -----------------------------------------------------------------------------------------------


async def drained(stop_s: float, *, after_notice: bytes = b"", answer_ping: bool = True) -> tuple[bytes, float]:
    """What a peer receives of a server that stops, and how long that takes."""
    async with connected() as (peer, server):
        await peer.send(raw.call(1, b"first"))
        await ended(peer, 1)
        began = server.loop.time()
        stopping = asyncio.create_task(server.stop(stop_s))
        assert (await peer.frame())[0] == raw.GOAWAY
        kind, _, _, payload = await peer.frame()
        assert kind == raw.PING
        await peer.send((frame(raw.PING, raw.ACK, 0, payload) if answer_ping else b"") + after_notice)
        received = await peer.closed()
        await stopping
        return received, server.loop.time() - began


async def test_calls_in_the_same_read_as_the_answer_to_a_drain_are_answered() -> None:
    """gRPC's core writes the answer to a ping ahead of requests that it has begun to write."""
    received, _ = await drained(10, after_notice=raw.call(3, b"on its way") + raw.call(5, b"", "Nope"))
    assert b"on its way" in received
    assert bytes((raw.HEADERS, raw.END_HEADERS | raw.END_STREAM)) + (5).to_bytes(4, "big") in received, "refused"


async def test_nor_does_a_long_read_lose_what_is_at_its_end() -> None:
    """It is taken in slices; here the answer to the notice is in the first, a request in the second."""
    late = frame(raw.WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")) * (2 * SLICE_BYTES // 13)
    received, _ = await drained(10, after_notice=late + raw.call(3, b"on its way"))
    assert b"on its way" in received


async def test_a_drain_does_not_wait_for_more_than_the_peers_knowledge() -> None:
    _, took_s = await drained(10)
    assert took_s < 5


async def test_a_peer_that_never_confirms_a_drain_is_left_when_the_grace_ends() -> None:
    _, took_s = await drained(0.3, answer_ping=False)
    assert 0.3 <= took_s < 2


async def test_a_peer_that_answers_no_ping_is_left_after_the_time_for_one() -> None:
    """Also where nothing stops, as when it had too many streams cut off."""
    limits = replace(SMALL, linger_s=0.01, max_cut_off=1, keepalive_timeout_s=0.2)
    async with connected(limits) as (peer, server):
        await peer.send(begin(1, message(b"hello")))
        await peer.until(raw.GOAWAY)
        began = server.loop.time()
        await peer.closed()
        assert 0.1 < server.loop.time() - began < 2


async def test_the_notice_of_a_drain_is_ahead_of_the_ping_however_much_is_queued() -> None:
    async with connected() as (peer, server):
        await peer.send(b"".join(raw.call(stream, b"x") for stream in range(1, 2 * MANY, 2)))
        await ended(peer, 1)  # the others are being answered
        stopping = asyncio.create_task(server.stop(10))
        kinds = []
        while raw.PING not in kinds:
            kinds.append((await peer.frame())[0])
        assert raw.GOAWAY in kinds
        peer.close()
        await stopping


async def test_the_time_to_look_for_life_does_not_shorten_a_drain() -> None:
    async with connected(replace(SMALL, keepalive_interval_s=0.3)) as (peer, server):
        await asyncio.sleep(0.28)
        stopping = asyncio.create_task(server.stop(10))
        payload = (await peer.until(raw.PING))[3]
        await asyncio.sleep(0.1)
        await peer.send(raw.call(1, b"on its way"))
        await peer.send(frame(raw.PING, raw.ACK, 0, payload))
        assert b"on its way" in await peer.closed()
        await stopping


async def test_a_drain_of_a_peer_that_is_leaving_ends_without_an_error() -> None:
    async with connected() as (peer, server):
        await peer.send(begin(1, message(b"one"), "Bidi"))
        await peer.until(raw.DATA, 1)
        await peer.send(frame(raw.GOAWAY, 0, 0, bytes(8)))
        stopping = asyncio.create_task(server.stop(10))
        payload = (await peer.until(raw.PING))[3]
        await peer.send(frame(raw.PING, raw.ACK, 0, payload) + frame(raw.DATA, raw.END_STREAM, 1))
        assert ENHANCE_YOUR_CALM not in await peer.closed()
        await stopping


async def test_a_drain_costs_a_real_client_no_call() -> None:
    """Each of these connections is drained in the midst of its calls; the client goes on over the next one."""
    async with ours(Echo()) as (server, port), channel(port) as client, asyncio.timeout(TIMEOUT_S):
        call = client.unary_unary(f"/{SERVICE}/Unary")
        draining = 0

        async def calls() -> None:
            for number in range(300):
                assert await call(b"%d" % number) == b"%d" % number

        async def drains() -> None:
            nonlocal draining
            while not working.done():
                for connection in list(server._connections):
                    # gRPC's core waits 20 s on a connection that asks it to leave before it has been used.
                    if getattr(connection, "_streams", {}):
                        connection.drain()
                        draining += 1
                await asyncio.sleep(0.01)

        working = asyncio.gather(*(calls() for _ in range(20)))
        await drains()
        await working
        assert draining > 10
