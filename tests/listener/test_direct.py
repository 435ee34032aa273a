"""Calls that are answered by a callback: what they share with the others, and what only they can get wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from store.errors import LEASE_NOT_FOUND
from store.etcdpb import rpc_pb2, rpc_pb2_grpc
from store.listener import Limits, Server
from store.listener.direct import DirectCall, DirectHandler
from store.listener.http2 import ANSWERS_PER_WRITE
from tests.listener import raw
from tests.listener.echo import channel
from tests.listener.member import loopback
from tests.listener.raw import DATA, END_HEADERS, END_STREAM, HEADERS, Peer, frame

METHOD = "/test.Echo/Unary"


class Desk:
    """Takes every request but ``ordinary`` ones, and answers when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[tuple[bytes, DirectCall]] = []
        self.taken = asyncio.Event()
        self.gone = asyncio.Event()
        self.goes = 0

    def direct(self, message: bytes, call: DirectCall) -> bool:
        if message == b"ordinary":
            return False
        self.waiting.append((message, call))
        call.gone = self._on_gone
        self.taken.set()
        return True

    def _on_gone(self) -> None:
        self.goes += 1
        self.gone.set()

    async def ordinary(self, request: bytes, _context: Any) -> bytes:
        return request + b", by the ordinary way"


@contextlib.asynccontextmanager
async def served(desk: Desk) -> AsyncIterator[tuple[Server, int]]:
    server = Server(Limits())
    handler = DirectHandler(grpc.unary_unary_rpc_method_handler(desk.ordinary), desk.direct)
    server.add_registered_method_handlers("test.Echo", {"Unary": handler})
    port = await server.listen("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop()


async def until(condition: Callable[[], bool], event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        while not condition():
            event.clear()
            await event.wait()


async def test_what_is_declined_goes_the_ordinary_way() -> None:
    async with served(Desk()) as (_, port), channel(port) as client:
        assert await client.unary_unary(METHOD)(b"ordinary") == b"ordinary, by the ordinary way"


async def test_a_server_that_stops_tells_those_who_wait() -> None:
    """With a status that says so: without one, grpc-go calls it UNKNOWN, and etcd's clients give up."""
    desk = Desk()
    async with served(desk) as (server, port), channel(port) as client:
        call = client.unary_unary(METHOD)(b"x")
        await until(lambda: bool(desk.waiting), desk.taken)
        await server.stop(0.01, "on purpose")
        assert (await call.code(), await call.details()) == (grpc.StatusCode.UNAVAILABLE, "on purpose")
        assert desk.goes == 1


async def test_whoever_fails_to_stop_for_one_call_keeps_nobody_else_from_it() -> None:
    desk = Desk()
    async with served(desk) as (server, port):
        peer = await Peer.connect(port)
        await peer.send(b"".join(raw.call(stream, b"x") for stream in (1, 3, 5)))
        await until(lambda: len(desk.waiting) == 3, desk.taken)

        def fails() -> None:
            raise ValueError("on purpose")

        desk.waiting[0][1].gone = fails
        peer.close()
        await until(lambda: desk.goes == 2, desk.gone)
        assert server.statistics()["calls"] == 0


async def test_many_answers_of_one_turn_all_arrive_at_their_callers() -> None:
    desk = Desk()
    async with served(desk) as (server, port), channel(port) as client:
        count = 5 * ANSWERS_PER_WRITE + 3
        calls = [client.unary_unary(METHOD)(b"%d" % number) for number in range(count)]
        await until(lambda: len(desk.waiting) == count, desk.taken)
        assert server.statistics()["calls"] == count
        for message, call in desk.waiting:
            call.reply(message * 100)
        assert await asyncio.gather(*calls) == [b"%d" % number * 100 for number in range(count)]
        assert server.statistics()["calls"] == 0
        assert desk.goes == 0
        assert {call.gone for _, call in desk.waiting} == {None}, "an answered call still holds its request"


async def test_the_first_answer_of_a_turn_leaves_at_once_and_the_next_ones_together() -> None:
    """A client with one request at a time waits for nothing else; one with many gains by fewer writes."""
    desk = Desk()
    async with served(desk) as (server, port), channel(port) as client:
        calls = [client.unary_unary(METHOD)(b"%d" % number) for number in range(ANSWERS_PER_WRITE + 1)]
        await until(lambda: len(desk.waiting) == len(calls), desk.taken)
        await asyncio.sleep(0)
        sent = [server.sent_bytes]
        for message, call in desk.waiting:
            call.reply(message)
            sent.append(server.sent_bytes)
        written = [number for number, (before, after) in enumerate(itertools.pairwise(sent)) if after > before]
        assert written == [0, ANSWERS_PER_WRITE]
        await asyncio.gather(*calls)


async def test_a_refusal_is_a_status() -> None:
    desk = Desk()
    async with served(desk) as (_, port), channel(port) as client:
        call = client.unary_unary(METHOD)(b"x")
        await until(lambda: bool(desk.waiting), desk.taken)
        desk.waiting[0][1].refuse(9, "no: 100 %, é")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert (caught.value.code(), caught.value.details()) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "no: 100 %, é",
        )


@pytest.mark.parametrize("how", ["cancelled", "deadline", "disconnected"])
async def test_whoever_works_for_a_caller_that_left_is_told_and_answers_to_nobody(how: str) -> None:
    desk = Desk()
    async with served(desk) as (server, port), channel(port) as client:
        await client.channel_ready()  # connecting would count
        call = client.unary_unary(METHOD)(b"x", timeout=0.5 if how == "deadline" else None)
        await until(lambda: bool(desk.waiting), desk.taken)
        if how == "cancelled":
            call.cancel()
        elif how == "disconnected":
            await client.close()
        await until(lambda: desk.goes == 1, desk.gone)
        desk.waiting[0][1].reply(b"too late")
        desk.waiting[0][1].refuse(2, "too late")
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)) as caught:
            await call
        if how == "deadline":
            assert isinstance(caught.value, grpc.aio.AioRpcError)
            assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert server.statistics()["calls"] == 0
    assert desk.goes == 1


@pytest.mark.parametrize("rest", [b"", b"\0\0\0\0\1y"])
async def test_a_request_is_taken_once_whatever_follows_it(rest: bytes) -> None:
    """Its stream may be half-closed by a frame of its own, or carry a second message."""
    desk = Desk()
    async with served(desk) as (_, port):
        peer = await Peer.connect(port)
        await peer.send(frame(HEADERS, END_HEADERS, 1, raw.request()))
        await peer.send(frame(DATA, 0, 1, b"\0" + struct.pack(">I", 1) + b"x"))
        await until(lambda: bool(desk.waiting), desk.taken)
        await peer.send(frame(DATA, END_STREAM, 1, rest) + frame(raw.PING, 0, 0, bytes(8)))
        await peer.until(raw.PING)
        desk.waiting[0][1].reply(b"answer")
        assert b"answer" in (await peer.until(DATA))[-1]
        assert [message for message, _ in desk.waiting] == [b"x"]
        peer.close()


def asks(count: int) -> bytes:
    body = b"\0" + struct.pack(">I", 1) + b"x"
    streams = range(1, 2 * count, 2)
    return b"".join(
        frame(HEADERS, END_HEADERS, stream, raw.request()) + frame(DATA, END_STREAM, stream, body)
        for stream in streams
    )


async def test_answers_on_a_connection_that_is_ending_harm_nobody() -> None:
    """Its session has been given up, and who answers is in the middle of applying."""
    desk, count = Desk(), ANSWERS_PER_WRITE + 4
    async with served(desk) as (server, port):
        peer = await Peer.connect(port)
        await peer.send(asks(count))
        await until(lambda: len(desk.waiting) == count, desk.taken)
        connection: Any = next(iter(server._connections))
        overflow = frame(raw.WINDOW_UPDATE, 0, 2 * count - 1, struct.pack(">I", 0x7FFFFFFF))
        connection.data_received(overflow)  # within one turn with what follows
        for _, call in desk.waiting[:-1]:
            call.reply(b"y")
        desk.waiting[-1][1].refuse(2, "no")
        await peer.closed()
        assert server.statistics()["calls"] == 0


async def test_a_stream_that_waits_for_room_goes_on_when_answers_emptied_the_queue() -> None:
    """They may be written in the middle of a turn: the next flush finds nothing left to do."""
    desk, done = Desk(), asyncio.Event()

    async def stream(_request: bytes, context: Any) -> None:
        await context.write(b"a" * 100_000)
        done.set()

    async with served(desk) as (server, port):
        server.add_registered_method_handlers(
            "test.Streams", {"Out": grpc.unary_stream_rpc_method_handler(stream)}
        )
        peer = await Peer.connect(port)
        room = struct.pack(">I", 1 << 24)
        await peer.send(frame(raw.WINDOW_UPDATE, 0, 0, room) + frame(raw.SETTINGS, 0, 0, b"\0\4" + room))
        await peer.send(asks(ANSWERS_PER_WRITE))
        await until(lambda: len(desk.waiting) == ANSWERS_PER_WRITE, desk.taken)
        connection: Any = next(iter(server._connections))
        wait = connection.wait_for_room

        async def wait_for_room(stream_id: int) -> None:
            """The answers are written after the stream has begun to wait, and before the flush of that turn."""
            waiting = wait(stream_id)
            waiter = waiting.send(None)
            waiter._asyncio_future_blocking = False
            for _, call in desk.waiting:
                call.reply(b"y")
            await waiter

        connection.wait_for_room = wait_for_room
        path = (b":path", b"/test.Streams/Out")
        head = raw.block([(b":method", b"POST"), (b":scheme", b"http"), path, (b":authority", b"localhost"),
                          (b"te", b"trailers"), (b"content-type", b"application/grpc")])  # fmt: skip
        await peer.send(frame(HEADERS, END_HEADERS, 101, head) + frame(DATA, END_STREAM, 101, bytes(5)))
        async with asyncio.timeout(5):
            await done.wait()
        peer.close()


async def test_a_stop_does_not_wait_for_what_nobody_answers() -> None:
    desk = Desk()
    async with served(desk) as (server, port), channel(port) as client:
        call = client.unary_unary(METHOD)(b"x")
        await until(lambda: bool(desk.waiting), desk.taken)
        async with asyncio.timeout(3):
            await server.stop(0.1)
        assert desk.goes == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await call


@pytest.mark.inside
async def test_a_write_that_cannot_be_answered_is_applied_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever applies has nothing to do with the answer."""

    def fail(*_: object) -> bytes:
        raise ValueError("on purpose")

    async with loopback() as member, channel(member.port) as client:
        kv: Any = rpc_pb2_grpc.KVStub(client)  # type: ignore[no-untyped-call]
        with monkeypatch.context() as patch:
            patch.setattr(type(member.node.api), "header_field", fail)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kv.Put(rpc_pb2.PutRequest(key=b"a", value=b"1"))
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNKNOWN, "on purpose")
        assert (await kv.Range(rpc_pb2.RangeRequest(key=b"a"))).kvs[0].value == b"1"


async def test_what_the_state_refuses_is_told_with_its_code() -> None:
    async with loopback() as member, channel(member.port) as client:
        kv: Any = rpc_pb2_grpc.KVStub(client)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kv.Put(rpc_pb2.PutRequest(key=b"a", lease=7))
        assert caught.value.details() == LEASE_NOT_FOUND.message
        put = rpc_pb2.RequestOp(request_put=rpc_pb2.PutRequest(key=b"a", lease=7))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kv.Txn(rpc_pb2.TxnRequest(success=[put]))
        assert caught.value.details() == LEASE_NOT_FOUND.message
