"""One suite over both servers: what holds with grpc.aio.server holds with the listener."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.listener.echo import CHANNEL_OPTIONS, SERVICE, Echo, channel, ours, reference

ERROR_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


@dataclass
class Bench:
    echo: Echo
    port: int
    name: str
    client: Any

    def unary(self, method: str = "Unary") -> Any:
        return self.client.unary_unary(f"/{SERVICE}/{method}")

    def bidi(self, method: str = "Bidi") -> Any:
        return self.client.stream_stream(f"/{SERVICE}/{method}")

    def server_stream(self, method: str = "ServerStream") -> Any:
        return self.client.unary_stream(f"/{SERVICE}/{method}")

    def client_stream(self) -> Any:
        return self.client.stream_unary(f"/{SERVICE}/ClientStream")


@pytest.fixture(params=["listener", "grpc.aio"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    echo = Echo()
    if request.param == "listener":
        async with ours(echo) as (_, port), channel(port) as client:
            yield Bench(echo, port, request.param, client)
    else:
        async with reference(echo) as port, channel(port) as client:
            yield Bench(echo, port, request.param, client)


async def test_unary(bench: Bench) -> None:
    assert await bench.unary()(b"hello") == b"hello"


async def test_empty_messages_are_messages(bench: Bench) -> None:
    assert await bench.unary()(b"") == b""


async def test_a_large_answer_arrives_whole(bench: Bench) -> None:
    assert await bench.unary()(b"size 3000000") == bytes(3_000_000)


async def test_a_large_request_arrives_whole(bench: Bench) -> None:
    request = b"x" * 5_000_000
    assert await bench.unary()(request) == request


async def test_server_stream(bench: Bench) -> None:
    answers = [answer async for answer in bench.server_stream()(b"100 3")]
    assert [int.from_bytes(answer[:4], "big") for answer in answers] == list(range(100))


async def test_server_stream_from_a_generator(bench: Bench) -> None:
    assert [answer async for answer in bench.server_stream("Generated")(b"3")] == [b"0", b"1", b"2"]


async def test_a_stream_without_answers_is_ok(bench: Bench) -> None:
    call = bench.server_stream()(b"0 0")
    assert [answer async for answer in call] == []
    assert await call.code() is grpc.StatusCode.OK


async def test_client_stream(bench: Bench) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"1234"

    assert await bench.client_stream()(requests()) == b"50 200"


@pytest.mark.parametrize("method", ["Bidi", "Reads"])
async def test_bidi_answers_between_requests(bench: Bench, method: str) -> None:
    call = bench.bidi(method)()
    for number in range(20):
        await call.write(b"%d" % number)
        assert await call.read() == b"%d" % number
    await call.done_writing()
    assert await call.read() is grpc.aio.EOF  # type: ignore[attr-defined]
    assert await call.code() is grpc.StatusCode.OK


async def test_answers_go_on_after_the_client_half_closed(bench: Bench) -> None:
    call = bench.bidi()()
    await call.write(b"after 3")
    await call.done_writing()
    assert [answer async for answer in call] == [b"after 3", b"more 0", b"more 1", b"more 2"]


@pytest.mark.parametrize("code", ERROR_CODES, ids=lambda code: str(code.name))
async def test_every_status_arrives_with_its_message_and_metadata(bench: Bench, code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(b"abort %d 100%% of \xc3\xa4\xc3\xb6 \xe2\x82\xac\n" % code.value[0])
    assert caught.value.code() is code
    assert caught.value.details() == "100% of äö €\n"
    trailing = dict(iter(caught.value.trailing_metadata()))  # type: ignore[var-annotated,arg-type]
    assert trailing["why-bin"] == b"\x00\xff"
    assert trailing["why"] == "told"


async def test_metadata_in_both_directions(bench: Bench) -> None:
    sent = (("text", "value"), ("twice", "a"), ("twice", "b"), ("raw-bin", b"\x00\x01\xff"))
    call = bench.unary()(b"metadata", metadata=sent)
    await call
    received = bench.echo.metadata
    for pair in sent:
        assert pair in received
    assert not [key for key, _ in received if key.startswith((":", "grpc-")) or key == "te"]
    initial = dict(await call.initial_metadata())
    trailing = dict(await call.trailing_metadata())
    assert (initial["initial"], initial["initial-bin"]) == ("one", b"\x01\x02")
    assert (trailing["trailing"], trailing["trailing-bin"]) == ("two", b"\xfe")


async def test_an_exception_is_unknown_and_named(bench: Bench) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(b"raise")
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert "on purpose" in (caught.value.details() or "")


async def test_a_code_that_was_set_replaces_the_answer(bench: Bench) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(b"set")
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS
    assert caught.value.details() == "set, not raised"


@pytest.mark.parametrize("path", ["/test.Echo/Nothing", "/test.Nobody/Unary"])
async def test_unknown_methods_are_unimplemented(bench: Bench, path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.client.unary_unary(path)(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_deadline_reaches_the_handler_and_cancels_it(bench: Bench) -> None:
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(b"wait", timeout=0.3)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(bench.echo.cancelled.wait(), 5)
    assert time.monotonic() - began < 3
    assert bench.echo.remaining_s is not None
    assert 0 < bench.echo.remaining_s <= 0.31


async def test_no_deadline_is_no_deadline(bench: Bench) -> None:
    await bench.unary()(b"x")
    assert bench.echo.remaining_s is None


async def test_a_cancelled_call_cancels_its_handler(bench: Bench) -> None:
    call = bench.unary()(b"wait")
    waiting = asyncio.ensure_future(_settled(call))
    await bench.echo.started.wait()
    call.cancel()
    await asyncio.wait_for(bench.echo.cancelled.wait(), 5)
    await waiting


async def test_a_cancelled_stream_cancels_its_handler(bench: Bench) -> None:
    call = bench.bidi()()
    await call.write(b"wait")
    await bench.echo.started.wait()
    call.cancel()
    await asyncio.wait_for(bench.echo.cancelled.wait(), 5)


async def test_a_lost_connection_cancels_its_handlers(bench: Bench) -> None:
    other = channel(bench.port)
    call = other.unary_unary(f"/{SERVICE}/Unary")(b"wait")
    waiting = asyncio.ensure_future(_settled(call))
    await bench.echo.started.wait()
    await other.close()
    await asyncio.wait_for(bench.echo.cancelled.wait(), 5)
    await waiting


async def _settled(call: Any) -> None:
    await asyncio.wait([asyncio.ensure_future(call.code())])


async def test_too_large_requests_are_exhausted(bench: Bench) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(bytes(21 * 1024 * 1024))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await bench.unary()(b"still there") == b"still there"


@pytest.mark.parametrize("encoding", [grpc.Compression.Gzip, grpc.Compression.NoCompression])
async def test_compressed_requests_are_accepted(bench: Bench, encoding: grpc.Compression) -> None:
    client: Any = grpc.aio.insecure_channel(f"127.0.0.1:{bench.port}", compression=encoding)
    async with client:
        request = b"compress me " * 1000
        assert await client.unary_unary(f"/{SERVICE}/Unary")(request) == request


async def test_done_callbacks_are_called_once_per_call(bench: Bench) -> None:
    await bench.unary()(b"1")
    await bench.unary()(b"2")
    for _ in range(2):
        await asyncio.wait_for(bench.echo.done.acquire(), 5)
    assert bench.echo.done.locked()


async def test_a_thousand_streams_at_once_on_a_connection(bench: Bench) -> None:
    calls = [bench.bidi()() for _ in range(1000)]
    await asyncio.gather(*(call.write(b"%d" % number) for number, call in enumerate(calls)))
    answers = await asyncio.gather(*(call.read() for call in calls))
    assert answers == [b"%d" % number for number in range(1000)]
    await asyncio.gather(*(call.done_writing() for call in calls))
    assert {await call.code() for call in calls} == {grpc.StatusCode.OK}


async def test_16_mb_streamed_both_ways(bench: Bench) -> None:
    piece = bytes(range(256)) * 1024
    call = bench.bidi()()

    async def send() -> None:
        for _ in range(64):
            await call.write(piece)
        await call.done_writing()

    sending = asyncio.ensure_future(send())
    assert [answer async for answer in call] == [piece] * 64
    await sending


async def test_200_connections(bench: Bench) -> None:
    clients = [channel(bench.port) for _ in range(200)]
    try:
        answers = await asyncio.gather(*(c.unary_unary(f"/{SERVICE}/Unary")(b"hello") for c in clients))
        assert set(answers) == {b"hello"}
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_the_blocking_client(bench: Bench) -> None:
    """grpcio's synchronous stubs, each kind of call, in a thread."""

    def use() -> None:
        client: Any = grpc.insecure_channel(f"127.0.0.1:{bench.port}", options=CHANNEL_OPTIONS)
        with client:
            assert client.unary_unary(f"/{SERVICE}/Unary")(b"hello", timeout=5) == b"hello"
            assert len(list(client.unary_stream(f"/{SERVICE}/ServerStream")(b"10 5", timeout=5))) == 10
            assert client.stream_unary(f"/{SERVICE}/ClientStream")(iter([b"ab", b"c"]), timeout=5) == b"2 3"
            assert list(client.stream_stream(f"/{SERVICE}/Bidi")(_three(), timeout=5)) == [b"0", b"1", b"2"]
            with pytest.raises(grpc.RpcError) as caught:
                client.unary_unary(f"/{SERVICE}/Unary")(b"abort 9 no", timeout=5)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    await asyncio.to_thread(use)


def _three() -> Iterator[bytes]:
    yield from (b"0", b"1", b"2")
