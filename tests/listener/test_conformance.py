"""One suite over both servers: what holds with grpc.aio.server holds with the listener, plain and with TLS."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from tests.listener.bench import Bench
from tests.listener.echo import SERVICE

ERROR_CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


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
    await bench.unary()(b"connected")  # connecting would count
    began = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await bench.unary()(b"wait", timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(bench.echo.cancelled.wait(), 5)
    assert time.monotonic() - began < 3
    assert bench.echo.remaining_s is not None
    assert 0 < bench.echo.remaining_s <= 0.51


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
    other = bench.connect()
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
    async with bench.connect(compression=encoding) as client:
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
    clients = [bench.connect() for _ in range(200)]
    try:
        answers = await asyncio.gather(*(c.unary_unary(f"/{SERVICE}/Unary")(b"hello") for c in clients))
        assert set(answers) == {b"hello"}
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def test_the_server_ends_a_stream_while_the_client_sends(bench: Bench) -> None:
    for code in ERROR_CODES:
        call = bench.bidi()()
        await call.write(b"first")
        assert await call.read() == b"first"
        await call.write(b"abort %d enough" % code.value[0])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert (caught.value.code(), caught.value.details()) == (code, "enough")
        assert ("why", "told") in list[object](caught.value.trailing_metadata() or ())
        with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
            await call.write(b"more")
    assert await bench.unary()(b"still there") == b"still there"
